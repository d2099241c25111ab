package cri

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// TestReboot: the machine is stopped in order and booted; the pod is made anew, as kubelet does, under another id and with another address, and goes
// on by its identity.
func TestReboot(t *testing.T) {
	n := newNode(t, "testserver")
	pod, config := n.annotated("db", map[string]string{"io.containerd.hibernate/identity": "db"})
	s := n.server(pod)
	s.Grow()
	s.Count()
	s.HangUp()
	n.must("hibernatectl", "--config", n.ConfigFile(), "drain", "--force", "--until-boot")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	for _, do := range []func() error{
		func() error { return n.Containerd.Stop(ctx) },
		func() error { return n.Reboot(ctx, true) },
		func() error { return n.Containerd.Start(ctx) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if state := n.stateOf("inspectp", pod); state != "SANDBOX_NOTREADY" {
		t.Errorf("after the boot the pod is %s", state)
	}
	text, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, []byte(strings.Replace(string(text), `"metadata":{`, `"metadata":{"attempt":1,`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := n.crictl("runp", config)
	t.Cleanup(func() { n.crictl("rmp", "--force", again) })
	after := known.Follow(t, s, n.World, again, n.server(again).Pod)
	t.Cleanup(after.HangUp)
	after.GoesOn()
}

// server is the program that a pod's sandbox runs.
func (n *node) server(pod string) *known.Server {
	n.t.Helper()
	var answer struct {
		Status struct{ Network struct{ IP string } }
	}
	if err := json.Unmarshal([]byte(n.crictl("inspectp", pod)), &answer); err != nil {
		n.t.Fatal(err)
	}
	return known.New(n.t, n.World, pod, harness.Pod{IP: answer.Status.Network.IP})
}

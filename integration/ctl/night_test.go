package ctl

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// until asks ls for the state of a workload until it is the one that is wanted.
func (n *node) until(id, state string) {
	n.t.Helper()
	deadline := time.Now().Add(limit)
	for !strings.HasPrefix(n.columns(id)["STATE"], state+" ") {
		if time.Now().After(deadline) {
			out, _ := n.ctl(0, "why-awake", id)
			n.t.Fatalf("%s is not %s: %s", id, state, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// What is frozen stays awake beside one that sleeps, whatever happens to hibernated; all can be woken; and what doctor collects has nothing of
// a workload's own.
func TestNight(t *testing.T) {
	n := &node{harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"min-awake": `"0s"`, "idle-timeout": `"500ms"`}}), t}
	const secret = "correct-horse-battery"
	n.ctl(0, "freeze", n.Name+"/w*", "--reason", "the release")
	for _, id := range []string{"web", "idler"} {
		c := harness.Container{ID: id, CNI: true, Image: "testserver", Detach: true, Env: []string{"PASSWORD=" + secret}}
		if _, err := n.Run(n.context(), c); err != nil {
			t.Fatal(err)
		}
	}
	n.until("idler", "asleep")
	if err := n.Daemon.Stop(n.context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Daemon.Start(n.context()); err != nil {
		t.Fatal(err)
	}
	n.ctl(0, "wake", "idler")
	n.until("idler", "asleep") // so that hibernated has had the time for the other one, too
	if got := n.columns("web"); !strings.HasPrefix(got["STATE"], "awake ") || got["SLEEPS IN"] != "no: frozen" {
		t.Errorf("frozen: %v", got)
	}
	out, _ := n.ctl(0, "why-awake", "web")
	n.says(out, "[frozen]", "the release")
	n.ctl(0, "unfreeze")
	n.until("web", "asleep")
	n.ctl(0, "freeze")
	out, _ = n.ctl(0, "wake", "--all")
	n.says(out, "/web: restored in ", "/idler: restored in ", "2 woke, 0 failed")
	out, _ = n.ctl(0, "why-slow", "idler")
	n.says(out, "RESTORE", "The slowest took")
	if strings.Count(out, "restored") < 2 {
		t.Errorf("two wakes of idler:\n%s", out)
	}

	bundle := filepath.Join(n.Dir, "bundle.tar.gz")
	cmd := n.Command(n.context(), "hibernatectl", "--config", n.ConfigFile(), "doctor", "--bundle", bundle)
	text, err := cmd.CombinedOutput() // what it finds depends on the machine
	n.says(string(text), "network", "the gate's nft expressions work", "the node is frozen since", "means:")
	for name, content := range unpacked(t, bundle) {
		for _, word := range []string{secret, "PASSWORD"} {
			if strings.Contains(content, word) {
				t.Errorf("%s has a workload's environment: %v", name, err)
			}
		}
	}
}

func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for in := tar.NewReader(zip); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, rerr := io.ReadAll(in)
		if err = errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(head.Name)] = string(text)
	}
	if !strings.Contains(files["workloads.json"], `"web"`) || !strings.Contains(files["node.json"], "runsc") {
		t.Errorf("of %d files", len(files))
	}
	return files
}

package ctl

import (
	"strings"
	"syscall"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A sleeper whose shim has died is listed until somebody starts it again or removes what is left; while its container
// exists, it is not removed by mistake.
func TestOrphans(t *testing.T) {
	n := &node{harness.New(t, harness.Options{Settings: map[string]string{"mode": `"manual"`}}), t}
	pod, err := n.NewPod(n.context(), "orphan")
	n.must(err)
	_, err = n.Run(n.context(), harness.Container{
		ID: "orphan", Image: "testserver", NetNS: pod.Path, Detach: true, Flags: []string{"--null-io"},
	})
	n.must(err)
	n.asleep("orphan")
	if out, _ := n.ctl(0, "orphans"); strings.Count(out, "\n") != 1 {
		t.Errorf("one that its shim looks after is listed:\n%s", out)
	}
	name := n.Name + "/orphan"
	_, errs := n.ctl(3, "orphans", "rm", name)
	n.says(errs, "no orphan", "there is none")

	n.killShim("orphan")
	out, _ := n.ctl(0, "orphans")
	n.says(out, name, "asleep", "MiB", "exists")
	_, errs = n.ctl(4, "orphans", "rm", name)
	n.says(errs, "started again, it goes on from this snapshot", "--force")
	_, errs = n.ctl(3, "orphans", "rm", "orphan") // a whole name is wanted
	n.says(errs, "there is "+name)

	_, err = n.Ctr(n.context(), "containers", "delete", "orphan")
	n.must(err)
	list, _ := n.object("orphans", "ls")["orphans"].([]any)
	if len(list) != 1 || at(list[0], "container") != "gone" || at(list[0], "state") != "asleep" || at(list[0], "id") != "orphan" {
		t.Errorf("orphans -o json: %v", list)
	}
	out, _ = n.ctl(0, "orphans", "rm", name)
	n.says(out, name+" is removed (", "MiB")
	if out, _ = n.ctl(0, "orphans", "ls"); strings.Count(out, "\n") != 1 {
		t.Errorf("it is listed after its removal:\n%s", out)
	}
	_, errs = n.ctl(2, "orphans", "drop", name)
	n.says(errs, "one of ls, rm")
	n.must(n.RemovePod(n.context(), pod))
}

// killShim ends a shim as a crash does, and waits until containerd knows.
func (n *node) killShim(id string) {
	n.t.Helper()
	r, err := n.Record(id)
	n.must(err)
	n.must(syscall.Kill(r.Pid, syscall.SIGKILL))
	n.must(n.WaitTask(n.context(), id, ""))
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

package refusals

import (
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// app is the name of an image that is another one's in between.
const app = "hibernate.test/app:1"

// begins runs a container of an image by that name, and says how it began.
func (n *node) begins(id, image string, annotations map[string]string) (outcome, detail string) {
	n.t.Helper()
	args := n.RunArgs(harness.Container{ID: id, Image: "testserver", Detach: true, Annotations: annotations, Args: []string{"sleep", "1000"}})
	args[slices.Index(args, harness.Reference("testserver"))] = image
	if _, err := n.Ctr(n.context(), args...); err != nil {
		n.t.Fatal(err)
	}
	now, err := n.Status(n.context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return now.GetLastWake().GetOutcome(), now.GetLastWake().GetDetail()
}

// leaves has a container sleep and end, and removes it.
func (n *node) leaves(id string) {
	n.t.Helper()
	if err := n.Kill(n.context(), id, "TERM"); err != nil {
		n.t.Fatal(err)
	}
	if err := n.WaitTask(n.context(), id, "STOPPED"); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Remove(n.context(), id); err != nil {
		n.t.Fatal(err)
	}
}

// A name that is another image's now: what slept over the former one's files is not restored over the latter's, with an identity or without, and
// the layers of both are told. The same image under another name is the same.
func TestAnotherImage(t *testing.T) {
	n := newNode(t)
	tag := func(source, name string) {
		t.Helper()
		if err := n.Import(n.context(), source); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Ctr(n.context(), "images", "tag", "--force", harness.Reference(source), name); err != nil {
			t.Fatal(err)
		}
	}
	for what, identity := range map[string]string{"identity": "app", "container": ""} {
		t.Run(what, func(t *testing.T) {
			n := n.on(t)
			asked := map[string]string{"on-stop": "hibernate"}
			next := "one"
			if identity != "" {
				asked["identity"], next = identity, "two"
			}
			tag("testserver", app)
			n.begins("one", app, asked)
			n.leaves("one")
			tag("testserver", "hibernate.test/same:2")
			if outcome, detail := n.begins(next, "hibernate.test/same:2", asked); outcome != "restored" {
				t.Errorf("under another name it is %s: %s", outcome, detail)
			}
			n.leaves(next)
			tag("busybox", app)
			outcome, detail := n.begins("one", app, asked)
			if outcome != "cold-started" || !strings.Contains(detail, "image changed: its layers were sha256:") || !strings.Contains(detail, "and are sha256:") {
				t.Errorf("over another image's files it is %s: %s", outcome, detail)
			}
			if err := n.Kill(n.context(), "one", "KILL"); err != nil {
				t.Fatal(err)
			}
			if err := n.Remove(n.context(), "one"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

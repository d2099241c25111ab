package verbs

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Tools reach into a container by its task's pid: "nerdctl cp" by its root, "--pid container:…" by its namespaces. Awake
// and asleep they must not get the host's.
func testPrivate(_ *testing.T, n *node) {
	c := harness.Container{ID: "private", Image: "testserver", Args: []string{"sh", "-c", "while :; do sleep 1; done"}}
	n.detached(c)
	n.hidesHost("private")
	n.sleep("private")
	n.hidesHost("private")
}

func (n *node) hidesHost(id string) {
	n.t.Helper()
	task, err := n.Task(n.context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", task.Pid)
	if _, err := os.Stat(root + "/etc"); !errors.Is(err, os.ErrNotExist) {
		n.t.Errorf("%s: the task's root has an /etc: %v", id, err)
	}
	if err := os.Mkdir(root+"/made", 0o700); err == nil {
		n.t.Errorf("%s: a directory could be made in the task's root", id)
		_ = os.Remove(root + "/made")
	}
	record, err := n.Record(id)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, kind := range []string{"pid", "ipc", "uts", "net"} {
		of := func(pid int) string {
			name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
			if err != nil {
				n.t.Fatal(err)
			}
			return name
		}
		if of(task.Pid) == of(record.Pid) {
			n.t.Errorf("%s: the task has the host's %s namespace", id, kind)
		}
	}
}

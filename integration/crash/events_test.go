package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/known"
)

// exit is what containerd published of the end of a task.
type exit struct{ status, pid int }

// exits begins to listen to containerd's events. The returned function waits for the app's next exit.
func (a *app) exits() func() exit {
	a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := a.w.Command(ctx, "ctr", "--address", a.w.Address(), "--namespace", a.w.Name, "events")
	out, err := cmd.StdoutPipe()
	a.must(err)
	a.must(cmd.Start())
	found := make(chan exit, 16)
	done, listening := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var once sync.Once
		for in := bufio.NewScanner(out); in.Scan(); {
			once.Do(func() { close(listening) })
			if e, ok := a.parse(in.Text()); ok {
				found <- e
			}
		}
		_ = cmd.Wait() // it was killed
	}()
	a.Cleanup(func() { cancel(); <-done })
	known.Eventually(a.T, "ctr listens to events", func() bool {
		_, err := a.w.Ctr(a.ctx(), "namespaces", "label", a.w.Name, "listening=yes") // is one
		a.must(err)
		return isClosed(listening)
	})
	return func() exit {
		a.Helper()
		select {
		case e := <-found:
			return e
		case <-time.After(patience):
			a.Fatal("containerd published no exit")
			return exit{}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// parse reads a line of `ctr events`: time, namespace, topic, and the event as JSON.
func (a *app) parse(line string) (exit, bool) {
	at := strings.IndexByte(line, '{')
	if at < 0 || !strings.Contains(line[:at], " /tasks/exit ") {
		return exit{}, false
	}
	var e struct {
		ContainerID string `json:"container_id"`
		Pid         int    `json:"pid"`
		ExitStatus  int    `json:"exit_status"`
	}
	if err := json.Unmarshal([]byte(line[at:]), &e); err != nil || e.ContainerID != a.ID {
		return exit{}, false
	}
	return exit{e.ExitStatus, e.Pid}, true
}

package faults

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// app is a test server whose state is known.
type app struct {
	*lane
	*known.Server
	taken   string       // a file that was taken away
	release func() error // gives back what was taken for as long as a program runs; nil: nothing is
}

// run starts an app in a pod of its own.
func (l *lane) run(id string, annotations map[string]string) *app {
	l.Helper()
	a := l.prepare(id)
	a.Start(harness.Container{Annotations: annotations, Flags: []string{"--null-io"}}, 4)
	return a
}

// prepare makes the pod of an app.
func (l *lane) prepare(id string) *app {
	l.Helper()
	pod, err := l.w.NewPod(l.ctx(), id)
	l.must(err)
	a := &app{lane: l, Server: known.New(l, l.w, id, pod)}
	l.Cleanup(a.remove)
	return a
}

func (a *app) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.HangUp()
	for _, err := range []error{a.runsc.Set(a.ID), a.w.Remove(ctx, a.ID), a.w.RemovePod(ctx, a.Pod)} {
		if err != nil {
			a.Error(err)
		}
	}
}

// again deletes the task, which has ended, and starts the same container with a new one.
func (a *app) again() {
	a.Helper()
	_, _ = a.w.Ctr(a.ctx(), "tasks", "delete", a.ID) // its status is the task's
	_, err := a.w.Ctr(a.ctx(), "tasks", "start", "--detach", "--null-io", a.ID)
	a.must(err)
}

// verb is one of ctr's, which must work or be refused.
func (a *app) verb(name string, works bool) {
	a.Helper()
	if out, err := a.w.Ctr(a.ctx(), "tasks", name, a.ID); (err == nil) != works {
		a.Fatalf("%s: %s, %v", name, out, err)
	}
}

// stored finds files of the snapshots by a pattern below the app's own directory.
func (a *app) stored(pattern string) []string {
	a.Helper()
	found, err := filepath.Glob(filepath.Join(a.w.Path(a.w.DataDir()), a.w.Name, "*", pattern))
	a.must(err)
	return found
}

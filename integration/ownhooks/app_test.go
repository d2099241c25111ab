// Package ownhooks has workloads run programs of their own at their sleep and their wake, and sleep beside files of the host's.
package ownhooks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// app is a test server whose state is known, with a directory of the host's at /outside.
type app struct {
	*testing.T
	*known.Server
	w       *harness.World
	outside string
}

func newWorld(t *testing.T) *harness.World {
	return harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`, "wake-timeout": `"5m"`}})
}

// prepare makes an app's directory and pod.
func prepare(t *testing.T, w *harness.World, id string) *app {
	t.Helper()
	a := &app{T: t, w: w, outside: filepath.Join(w.Dir, id+"-outside")}
	a.must(os.Mkdir(a.outside, 0o755))
	pod, err := w.NewPod(a.ctx(), id)
	a.must(err)
	a.Server = known.New(t, w, id, pod)
	t.Cleanup(func() {
		a.HangUp()
		for _, err := range []error{w.Remove(a.ctx(), id), w.RemovePod(a.ctx(), pod)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return a
}

// start starts the server with these settings, and further flags of ctr.
func (a *app) start(annotations map[string]string, flags ...string) {
	a.Helper()
	a.Start(harness.Container{Annotations: annotations, Flags: append([]string{
		"--null-io", "--mount", "type=bind,src=" + a.outside + ",dst=/outside,options=rbind:rw"}, flags...)}, 4)
}

// run is both.
func run(t *testing.T, w *harness.World, id string, annotations map[string]string, flags ...string) *app {
	t.Helper()
	a := prepare(t, w, id)
	a.start(annotations, flags...)
	return a
}

func (a *app) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), known.Patience)
	a.T.Cleanup(cancel)
	return ctx
}

func (a *app) must(err error) {
	a.Helper()
	if err != nil {
		a.T.Fatal(err)
	}
}

// said is what hooks have written to /outside/said.
func (a *app) said() string {
	a.Helper()
	text, err := os.ReadFile(filepath.Join(a.outside, "said"))
	if err != nil && !os.IsNotExist(err) {
		a.T.Fatal(err)
	}
	return string(text)
}

func (a *app) says(want string) {
	a.Helper()
	if got := a.said(); got != want {
		a.T.Errorf("hooks have said %q, want %q", got, want)
	}
}

// sh is a hook that a shell runs.
func sh(script string) string { return "/bin/sh -c '" + script + "'" }

// where is a step's place among those of a transition; -1: it is none of them.
func where(t *shimv1.Transition, step string) int {
	return slices.IndexFunc(t.GetSteps(), func(s *shimv1.Step) bool { return s.GetName() == step })
}

// told looks at how a transition ended, and for texts in its detail.
func (a *app) told(t *shimv1.Transition, outcome string, texts ...string) {
	a.Helper()
	if t.GetOutcome() != outcome {
		a.T.Errorf("%s: %s (%s), want %s", t.GetKind(), t.GetOutcome(), t.GetDetail(), outcome)
	}
	for _, text := range texts {
		if !strings.Contains(t.GetDetail(), text) {
			a.T.Errorf("%s is told as %q, without %q", t.GetKind(), t.GetDetail(), text)
		}
	}
}

// status is the workload's.
func (a *app) status() *shimv1.StatusResponse {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	return s
}

// alone waits until the sandbox has no process but the server.
func (a *app) alone() {
	a.Helper()
	known.Eventually(a.T, "nothing that a hook has started is left", func() bool {
		out, err := a.w.Exec(a.ctx(), a.ID, "/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
		a.must(err)
		return !strings.Contains(out, "sleep 1000")
	})
}

// begun waits until a hook has said something.
func (a *app) begun(text string) {
	a.Helper()
	known.Eventually(a.T, fmt.Sprintf("a hook says %q", text), func() bool { return strings.Contains(a.said(), text) })
}

// Package flat is about workloads that run before their memory is loaded: what they read must be what was saved, whatever
// becomes of the snapshot, the sidecar, the sandbox and the shim meanwhile, and nothing may be left behind.
//
// An *app* is a test server whose memory is known, big enough for its load to take a while.
package flat

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// settings have memory loaded while the sandbox runs.
func settings(more map[string]string) map[string]string {
	all := map[string]string{"mode": `"manual"`, "load": `"flat"`, "min-free-disk": `"1MiB"`}
	for k, v := range more {
		all[k] = v
	}
	return all
}

type app struct {
	*testing.T
	*known.Server
	w *harness.World
}

// start runs an app with that much memory. It ends with the test.
func start(t *testing.T, w *harness.World, id string, mib int, c harness.Container) *app {
	t.Helper()
	a := &app{T: t, w: w}
	pod, err := w.NewPod(a.ctx(), id)
	a.must(err)
	a.Server = known.New(t, w, id, pod)
	t.Cleanup(a.end)
	a.must(w.Import(a.ctx(), "testserver"))
	c.Flags = append(c.Flags, "--null-io")
	a.Start(c, mib)
	return a
}

func (a *app) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.HangUp()
	if err := a.w.Remove(ctx, a.ID); err != nil {
		a.Error(err)
	}
	if err := a.w.RemovePod(ctx, a.Pod); err != nil {
		a.Error(err)
	}
	if left := a.sidecars(); len(left) > 0 {
		a.Errorf("sidecars are left: %v", left)
	}
}

func (a *app) sleep() {
	a.Helper()
	a.HangUp()
	a.Sleep()
}

// sidecars are the pids of the container's sidecars: runsc tells them the log in the container's bundle.
func (a *app) sidecars() []int {
	a.Helper()
	all, err := a.w.Processes()
	a.must(err)
	var pids []int
	for _, p := range all {
		if p.Argv[0] == "runsc-checkpointgofer" && strings.Contains(strings.Join(p.Argv, " "), "/"+a.ID+"/hibernate/log/") {
			pids = append(pids, p.Pid)
		}
	}
	return pids
}

// wake wakes it by a request of the shim's service, and returns while its memory still comes.
func (a *app) wake() *shimv1.Transition {
	a.Helper()
	t, err := a.w.Wake(a.ctx(), a.ID)
	a.must(err)
	return t
}

// status is the shim's.
func (a *app) status() *shimv1.StatusResponse {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	return s
}

// isLoading says whether the shim tells that memory still comes.
func (a *app) isLoading() bool {
	return slices.ContainsFunc(a.status().GetBlockers(), func(r *shimv1.Reason) bool { return r.GetCode() == "loading" })
}

// loaded waits until all memory is there, and looks that it came through the sidecar.
func (a *app) loaded() {
	a.Helper()
	a.eventually("all memory is loaded", func() bool { return !a.isLoading() })
	last := a.status().GetLastWake()
	if last.GetOutcome() != "restored" || last.GetDetail() != "" || a.step(last, "load") == nil {
		a.Fatalf("the wake was not flat: %v", last)
	}
	a.eventually("the sidecar has ended", func() bool { return len(a.sidecars()) == 0 })
}

func (a *app) step(t *shimv1.Transition, name string) *shimv1.Step {
	for _, s := range t.GetSteps() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// image is a file of the newest snapshot.
func (a *app) image(file string) string {
	a.Helper()
	found, err := filepath.Glob(a.w.Path(filepath.Join(a.w.DataDir(), a.w.Name, "*", "[0-9]*", "image", file)))
	a.must(err)
	for _, f := range found {
		if head, err := os.ReadFile(filepath.Join(f, "../../../head.json")); err == nil && strings.Contains(string(head), `"`+a.ID+`"`) {
			return f
		}
	}
	a.Fatalf("no %s of %s in %v", file, a.ID, found)
	return ""
}

// flip changes one byte of a file of the newest snapshot.
func (a *app) flip(file string, at int64) {
	a.Helper()
	f, err := os.OpenFile(a.image(file), os.O_RDWR, 0)
	a.must(err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	a.must(err)
	b[0] ^= 1
	_, err = f.WriteAt(b[:], at)
	a.must(err)
}

func (a *app) size(file string) int64 {
	a.Helper()
	st, err := os.Stat(a.image(file))
	a.must(err)
	return st.Size()
}

// signal sends a signal to the sidecar, of which there must be one.
func (a *app) signal(s syscall.Signal) {
	a.Helper()
	pids := a.sidecars()
	if len(pids) != 1 {
		a.Fatalf("sidecars: %v", pids)
	}
	a.must(syscall.Kill(pids[0], s))
}

func (a *app) eventually(what string, is func() bool) {
	a.Helper()
	for end := time.Now().Add(known.Patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			a.Fatalf("not within %v: %s", known.Patience, what)
		}
	}
}

func (a *app) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), known.Patience)
	a.Cleanup(cancel)
	return ctx
}

func (a *app) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

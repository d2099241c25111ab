package flat

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// heldMiB is memory enough for a quarter of it to hold what a woken server needs last.
const heldMiB = 64

// What may become of a workload while its memory is loaded.
func TestWhileLoading(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{
		"sidecar": fmt.Sprintf("%q", heldSidecar(t)),
	})})
	for name, c := range map[string]struct {
		block bool
		run   func(*app)
	}{
		"hibernate waits":               {false, hibernateWaits},
		"a verb of containerd's":        {false, verbs},
		"paused and resumed":            {false, pausedAndResumed},
		"paused and lost":               {false, pausedAndLost},
		"paused and lost, block":        {true, pausedAndLostBlocked},
		"killed":                        {false, killed},
		"deleted":                       {false, deleted},
		"the sandbox dies":              {false, sandboxDies},
		"the sidecar hangs and it dies": {false, sidecarHangs},
		"the sidecar dies":              {false, sidecarDies},
		"the disk fails":                {false, diskFails},
		"a bad chunk":                   {false, badChunk},
		"the shim dies":                 {false, shimDies},
		"the sidecar dies, block":       {true, sidecarDiesBlocked},
		"a bad chunk, block":            {true, badChunkBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			annotations := map[string]string{}
			if c.block {
				annotations["on-restore-failure"] = "block"
			}
			id := strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name)
			c.run(start(t, w, id, heldMiB, harness.Container{Annotations: annotations}))
		})
	}
}

// A hibernation that is asked for meanwhile comes after the load; the snapshot stays until then.
func hibernateWaits(a *app) {
	release := a.wakeHeld()
	image := a.image("pages.img")
	done := make(chan error, 1)
	go func() {
		_, err := a.w.Sleep(a.ctx(), a.ID)
		done <- err
	}()
	select {
	case err := <-done:
		a.Fatalf("it slept while its memory was loaded: %v", err)
	case <-time.After(300 * time.Millisecond): // long enough for one that doesn't wait to have begun
	}
	if _, err := os.Stat(image); err != nil || a.status().GetState() != "awake" {
		a.Fatalf("it is %s, %v", a.status().GetState(), err)
	}
	release()
	a.must(<-done)
	a.GoesOn()
	a.loaded()
}

// An exec, metrics, a checkpoint: each comes to its end, at the latest when all is there.
func verbs(a *app) {
	release := a.wakeHeld()
	if _, err := a.w.Ctr(a.ctx(), "tasks", "metrics", a.ID); err != nil {
		a.Error(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.w.Exec(a.ctx(), a.ID, "/testserver", "-help")
		if err != nil && strings.Contains(err.Error(), "exit status") { // it has run
			err = nil
		}
		done <- err
	}()
	time.AfterFunc(100*time.Millisecond, release)
	a.must(<-done)
	a.GoesOn()
	a.loaded()
}

func pausedAndResumed(a *app) {
	release := a.wakeHeld()
	done := make(chan error, 1)
	go func() {
		_, err := a.w.Ctr(a.ctx(), "tasks", "pause", a.ID)
		done <- err
	}()
	time.AfterFunc(100*time.Millisecond, release)
	a.must(<-done)
	a.resume()
	a.GoesOn()
	a.loaded()
}

// A pause waits for the memory. When that doesn't come, it is the one that has begun afresh, or is blocked, that is paused.
func pausedAndLost(a *app) {
	a.losePaused()
	a.lostBy("the sidecar ended")
	a.resume()
	a.IsNew()
	a.setAside()
}

func pausedAndLostBlocked(a *app) {
	a.losePaused()
	a.must(os.Remove(a.control("hold")))
	a.resume()
	a.wake()
	a.GoesOn()
	a.loaded()
}

func (a *app) losePaused() {
	a.Helper()
	a.wakeHeld()
	done := make(chan error, 1)
	go func() {
		_, err := a.w.Ctr(a.ctx(), "tasks", "pause", a.ID)
		done <- err
	}()
	select {
	case err := <-done:
		a.Fatalf("it was paused while its memory was loaded: %v", err)
	case <-time.After(300 * time.Millisecond): // long enough for one that doesn't wait to have begun
	}
	a.signal(syscall.SIGKILL)
	a.must(<-done)
	task, err := a.w.Task(a.ctx(), a.ID)
	if err != nil || task.State != "PAUSED" {
		a.Errorf("it is %s, %v", task.State, err)
	}
}

func (a *app) resume() {
	a.Helper()
	_, err := a.w.Ctr(a.ctx(), "tasks", "resume", a.ID)
	a.must(err)
}

func killed(a *app) {
	a.wakeHeld()
	a.must(a.w.Kill(a.ctx(), a.ID, "KILL"))
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	a.noneLeft()
}

func deleted(a *app) {
	a.wakeHeld()
	a.must(a.w.Remove(a.ctx(), a.ID))
	a.noneLeft()
}

// The sandbox is the task.
func sandboxDies(a *app) {
	a.wakeHeld()
	a.must(syscall.Kill(a.Sandbox(), syscall.SIGKILL))
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	a.noneLeft()
}

func sidecarHangs(a *app) {
	a.wakeHeld()
	a.signal(syscall.SIGSTOP)
	a.must(a.w.Kill(a.ctx(), a.ID, "KILL"))
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	a.noneLeft()
}

func sidecarDies(a *app) {
	release := a.wakeHeld()
	a.signal(syscall.SIGKILL)
	release()
	a.lostBy("the sidecar ended")
	a.IsNew()
	a.setAside()
	a.sleep()
	a.GoesOn()
}

func diskFails(a *app) {
	release := a.wakeHeld()
	a.fail()
	release()
	a.lostBy("input/output error")
	a.IsNew()
}

func badChunk(a *app) {
	a.sleep()
	release := a.hold()
	a.flip("pages.img", a.size("pages.img")-1000)
	a.wake()
	release()
	a.lostBy("pages.img: corrupt")
	a.IsNew()
	a.setAside()
	a.sleep()
	a.GoesOn()
}

func sidecarDiesBlocked(a *app) {
	a.wakeHeld()
	a.signal(syscall.SIGKILL)
	s, err := a.w.WaitState(a.ctx(), a.ID, "blocked")
	a.must(err)
	if s.GetLastWake().GetOutcome() != "blocked" {
		a.Errorf("told as %v", s.GetLastWake())
	}
	a.must(os.Remove(a.control("hold")))
	a.wake()
	a.GoesOn()
	a.loaded()
}

func badChunkBlocked(a *app) {
	a.sleep()
	release := a.hold()
	at := a.size("pages.img") - 1000
	a.flip("pages.img", at)
	a.wake()
	release()
	s, err := a.w.WaitState(a.ctx(), a.ID, "blocked")
	a.must(err)
	if detail := s.GetLastWake().GetDetail(); !strings.Contains(detail, "pages.img: corrupt") {
		a.Errorf("told as %s", detail)
	}
	if body, err := a.Try("GET", "/counter"); err == nil {
		a.Errorf("a blocked one answers %s", body)
	}
	a.flip("pages.img", at) // mended
	a.wake()
	a.GoesOn()
	a.loaded()
}

func shimDies(a *app) {
	a.wakeHeld()
	a.killShim()
	a.must(a.w.WaitTask(a.ctx(), a.ID, ""))
	a.noneLeft()
	a.eventually("the container can be started again", func() bool {
		_, err := a.w.Ctr(a.ctx(), "tasks", "start", "--detach", "--null-io", a.ID)
		return err == nil
	})
	a.IsNew()
}

// noneLeft looks that neither sandbox nor sidecar is left.
func (a *app) noneLeft() {
	a.Helper()
	a.eventually("the sidecar has ended", func() bool { return len(a.sidecars()) == 0 })
}

// lostBy waits until it has begun afresh, and looks how that is told.
func (a *app) lostBy(why string) {
	a.Helper()
	a.eventually("it begins afresh", func() bool {
		return a.status().GetState() == "awake" && a.status().GetLastWake().GetOutcome() != "restored"
	})
	last := a.status().GetLastWake()
	if last.GetOutcome() != "cold-started" || !strings.Contains(last.GetDetail(), why) {
		a.Errorf("told as %s: %s", last.GetOutcome(), last.GetDetail())
	}
}

// setAside looks that one snapshot is in quarantine.
func (a *app) setAside() {
	a.Helper()
	all, err := filepath.Glob(a.w.Path(filepath.Join(a.w.DataDir(), a.w.Name, "*", "quarantine", "*.json")))
	a.must(err)
	for _, path := range all {
		if head, err := os.ReadFile(filepath.Join(filepath.Dir(path), "../head.json")); err == nil && strings.Contains(string(head), `"`+a.ID+`"`) {
			return
		}
	}
	a.Errorf("no snapshot of %s is set aside: %v", a.ID, all)
}

// Where the sidecar can't be used, memory is loaded as before, and that is told.
func TestPlainInstead(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	version := strings.TrimSpace(sidecarVersion(t, w))
	for name, c := range map[string]struct{ sidecar, told string }{
		"none":            {filepath.Join(t.TempDir(), "none/checkpointgofer"), "there is no sidecar"},
		"another version": {script(t, "echo go-1-2"), "serves runsc go-1-2"},
		"none that runs":  {script(t, "exit 1"), "can't be used"},
		"one that fails":  {script(t, `[ "$1" = -version ] && echo `+version+` && exit; exit 1`), "restore"},
		"one that hangs":  {script(t, `[ "$1" = -version ] && echo `+version+` && exit; sleep 0.3`), "restore"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, w, strings.ReplaceAll(name, " ", "-"), 4, harness.Container{
				Flags: []string{"--runtime-config-path", configWith(t, w, fmt.Sprintf("sidecar = %q\n", c.sidecar))},
			})
			a.sleep()
			a.GoesOn()
			last := a.status().GetLastWake()
			if last.GetOutcome() != "restored" || !strings.Contains(last.GetDetail(), "loaded before it ran") || !strings.Contains(last.GetDetail(), c.told) {
				t.Errorf("told as %s: %s", last.GetOutcome(), last.GetDetail())
			}
		})
	}
}

// configWith is the world's configuration with a line more.
func configWith(t *testing.T, w *harness.World, line string) string {
	t.Helper()
	all, err := os.ReadFile(w.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, append([]byte(line), all...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sidecarVersion(t *testing.T, w *harness.World) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := w.Output(ctx, w.Program("hibernate-bin/checkpointgofer"), "-version")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

package flat

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A sandbox that is booted while the workload sleeps is the one that it wakes in; whatever becomes of it before, the workload
// wakes as it was, and nothing is left.
func TestStandby(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"standby": `"on"`})})
	for name, run := range map[string]func(*app){
		"cycles":                       standbyCycles,
		"woken while it boots":         standbyUnready,
		"it dies":                      standbyDies,
		"killed":                       standbyKilled,
		"killed while it boots":        standbyKilledEarly,
		"deleted":                      func(a *app) { a.gone(a.stands(), func() { a.must(a.w.Remove(a.ctx(), a.ID)) }) },
		"the shim dies":                standbyShimDies,
		"the shim dies while it boots": standbyShimDiesEarly,
		"SIGTERM":                      standbyTerm,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(start(t, w, strings.ReplaceAll(name, " ", "-"), 16, harness.Container{}))
		})
	}
}

// stands has the app sleep, and returns the pid of the sandbox that stands by.
func (a *app) stands() int {
	a.Helper()
	a.sleep()
	a.eventually("a sandbox stands by", func() bool { return a.Sandbox() != 0 })
	if s := a.status(); s.GetState() != "asleep" {
		a.Fatalf("with a standby it is %s", s.GetState())
	}
	return a.Sandbox()
}

// gone looks that a process ends by what is done.
func (a *app) gone(pid int, by func()) {
	a.Helper()
	stat := fmt.Sprintf("/proc/%d/stat", pid)
	before, err := os.ReadFile(stat)
	a.must(err)
	begun := strings.Fields(string(before[strings.LastIndexByte(string(before), ')'):]))[20] // since boot: tells a pid used again
	by()
	a.eventually("the standby has ended", func() bool {
		now, err := os.ReadFile(stat)
		return err != nil || strings.Fields(string(now[strings.LastIndexByte(string(now), ')'):]))[20] != begun
	})
}

func standbyCycles(a *app) {
	for range 3 {
		pid := a.stands()
		a.GoesOn()
		a.loaded()
		if now := a.Sandbox(); now != pid {
			a.Errorf("it woke in sandbox %d, and %d stood by", now, pid)
		}
		a.GoesOn()
	}
}

func standbyUnready(a *app) {
	for i := range 6 {
		a.sleep()
		time.Sleep(time.Duration(i) * 12 * time.Millisecond) // somewhere in its boot
		a.GoesOn()
		a.loaded()
	}
}

func standbyDies(a *app) {
	for range 2 {
		a.must(syscall.Kill(a.stands(), syscall.SIGKILL))
		a.eventually("that it ended is known", func() bool { return a.Sandbox() == 0 })
		if s := a.status(); s.GetState() != "asleep" {
			a.Fatalf("after its standby's end it is %s", s.GetState())
		}
		a.GoesOn()
		a.loaded()
	}
	pid := a.stands() // and when the wake comes first
	a.must(syscall.Kill(pid, syscall.SIGKILL))
	a.GoesOn()
}

func standbyKilled(a *app) {
	a.gone(a.stands(), func() {
		a.must(a.w.Kill(a.ctx(), a.ID, "KILL"))
		a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	})
}

func standbyKilledEarly(a *app) {
	a.sleep()
	time.Sleep(10 * time.Millisecond) // its boot takes several times that
	a.must(a.w.Kill(a.ctx(), a.ID, "KILL"))
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	a.noSandbox()
}

func standbyShimDies(a *app) {
	a.gone(a.stands(), a.killShim)
	a.Again()
	a.GoesOn()
}

func standbyShimDiesEarly(a *app) {
	a.sleep()
	time.Sleep(20 * time.Millisecond)
	a.killShim()
	a.noSandbox()
	a.Again()
	a.GoesOn()
}

func standbyTerm(a *app) {
	a.stands()
	a.must(a.w.Kill(a.ctx(), a.ID, "TERM"))
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	a.noSandbox()
}

// killShim kills the shim, and waits until containerd has cleaned up after it.
func (a *app) killShim() {
	a.Helper()
	bundle := a.Bundle()
	a.must(syscall.Kill(a.Shim(), syscall.SIGKILL))
	a.eventually("containerd has removed the bundle", func() bool {
		_, err := os.Stat(bundle)
		return os.IsNotExist(err)
	})
}

// noSandbox looks that no process of runsc's is there for the app.
func (a *app) noSandbox() {
	a.Helper()
	a.eventually("no sandbox is left", func() bool {
		all, err := a.w.Processes()
		a.must(err)
		for _, p := range all {
			if line := strings.Join(p.Argv, " "); strings.HasPrefix(p.Argv[0], "runsc-") && strings.Contains(line, "/"+a.ID+"/hibernate/log/") {
				return false
			}
		}
		return true
	})
}

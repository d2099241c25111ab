package ownhooks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const say = `echo $HIBERNATE_HOOK $HIBERNATE_AFTER >> /outside/said`

// Both run once each time, in the container, in their step.
func TestHooksRun(t *testing.T) {
	a := run(t, newWorld(t), "both", map[string]string{"hook-before-sleep": sh(say), "hook-after-wake": sh(say)})
	want := ""
	for range 2 {
		a.Sleep()
		want += "hook-before-sleep\n"
		a.says(want)
		a.GoesOn()
		a.Awake()
		want += "hook-after-wake restore\n"
		a.says(want)
	}
	s := a.status()
	if at := where(s.GetLastHibernate(), "hook"); at != 1 || where(s.GetLastHibernate(), "quiesce") != 2 {
		t.Errorf("steps of the hibernation: %v", s.GetLastHibernate().GetSteps())
	}
	if at := where(s.GetLastWake(), "hook"); at < 0 || at != where(s.GetLastWake(), "restore")+1 || at != where(s.GetLastWake(), "open")-1 {
		t.Errorf("steps of the wake: %v", s.GetLastWake().GetSteps())
	}
	a.told(s.GetLastHibernate(), "slept")
	a.told(s.GetLastWake(), "restored")
}

// A hook that uses the network before a sleep undoes nothing; a client that does, does, and then what the hook has done is taken back.
func TestHookUsesTheNetwork(t *testing.T) {
	w := newWorld(t)
	peer := run(t, w, "peer", nil)
	a := run(t, w, "caller", map[string]string{
		"hook-before-sleep": sh("wget -qO- http://" + peer.Address(8080) + "/ >> /outside/said && " + say + "; while test -e /outside/hold; do sleep 0.1; done"),
		"hook-after-wake":   sh(say),
	})
	done, err := w.Hibernate(a.ctx(), a.ID)
	a.must(err)
	a.told(done, "slept")
	const first = "hello\nhook-before-sleep\nhook-after-wake restore\n"
	a.GoesOn()
	a.Awake()
	a.says(first)
	before := a.status().GetHibernations()

	a.must(os.WriteFile(filepath.Join(a.outside, "hold"), nil, 0o644))
	failed := make(chan error, 1)
	go func() { _, err := w.Hibernate(a.ctx(), a.ID); failed <- err }()
	a.begun(first + "hello\nhook-before-sleep\n")
	a.Count() // by a connection from before, perhaps: it is served at once
	a.must(os.Remove(filepath.Join(a.outside, "hold")))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "somebody talks") || !strings.Contains(err.Error(), "while hook-before-sleep ran") {
		t.Errorf("a client is there, and the hibernation ends as %v", err)
	}
	a.begun("hook-after-wake undo\n")
	a.says(first + "hello\nhook-before-sleep\nhook-after-wake undo\n")
	a.GoesOn()
	if s := a.status(); s.GetHibernations() != before {
		t.Error("it has slept")
	}
	a.Sleep()
	a.GoesOn()
}

// A hook that fails before a sleep is told, and the workload stays awake, or sleeps where that is to be ignored.
func TestHookFailsBeforeSleep(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		hook, told string
	}{
		"status":  {sh("echo much; echo the lease is not mine >&2; exit 3"), `ended with status 3; it said: "much\nthe lease is not mine"`},
		"missing": {"/usr/bin/nothing --at all", `ended with status 127; it said: "/usr/bin/nothing: no such file`},
		"late":    {sh("echo begun; sleep 1000 & sleep 1000"), `took longer than hook-timeout, 3s, and was killed; it said: "begun"`},
		"words":   {`/bin/sh -c "echo \"$0 and $1\"; exit 1" 'a b' c`, `it said: "a b and c"`},
	} {
		for _, policy := range []string{"abort", "ignore"} {
			t.Run(name+" "+policy, func(t *testing.T) {
				settings := map[string]string{"hook-before-sleep": c.hook, "hook-failure": policy}
				if name == "late" {
					settings["hook-timeout"] = "3s"
				}
				a := run(t, w, name+"-"+policy, settings)
				_, err := w.Hibernate(a.ctx(), a.ID)
				record := a.status().GetLastHibernate()
				if policy == "ignore" {
					a.must(err)
					a.told(record, "slept", "ignored: hook-before-sleep ", c.told)
				} else {
					a.told(record, "failed", "hook-before-sleep ", c.told)
					if err == nil || !strings.Contains(err.Error(), c.told) || a.status().GetState() != "awake" {
						t.Errorf("it is %s: %v", a.status().GetState(), err)
					}
				}
				a.GoesOn()
				a.Awake()
				a.alone()
			})
		}
	}
}

// One that fails after a wake blocks it, and the same snapshot is restored once that is mended; where it is to be ignored it is told.
func TestHookFailsAfterWake(t *testing.T) {
	w := newWorld(t)
	const hook = "test -e /outside/well || { echo not well; exit 4; }"
	a := run(t, w, "strict", map[string]string{"hook-after-wake": sh(hook)})
	a.Sleep()
	sequence := a.status().GetSequence()
	_, err := w.Wake(a.ctx(), a.ID)
	s := a.status()
	a.told(s.GetLastWake(), "blocked", `hook-after-wake ended with status 4; it said: "not well"`, "the snapshot is kept as it was")
	if err == nil || s.GetState() != "blocked" || s.GetSandboxPid() != 0 || s.GetSequence() != sequence {
		t.Errorf("%v, %v", err, s)
	}
	a.must(os.WriteFile(filepath.Join(a.outside, "well"), nil, 0o644))
	_, err = w.Wake(a.ctx(), a.ID)
	a.must(err)
	a.GoesOn()

	b := run(t, w, "lax", map[string]string{"hook-after-wake": sh(hook), "hook-failure": "ignore"})
	b.Sleep()
	b.GoesOn()
	b.Awake()
	b.told(b.status().GetLastWake(), "restored", `ignored: hook-after-wake ended with status 4; it said: "not well"`)

	c := run(t, w, "slow", map[string]string{"hook-after-wake": sh("sleep 1000"), "wake-timeout": "3s", "hook-timeout": "1m", "hook-failure": "ignore"})
	c.Sleep()
	if _, err = w.Wake(c.ctx(), c.ID); err == nil {
		t.Error("it wakes, though its hook doesn't end")
	}
	c.told(c.status().GetLastWake(), "blocked", "hook-after-wake did not end within the wake's time, wake-timeout (3s)")
}

// The end of the container, of whatever kind, waits for no hook.
func TestTheEndWaitsForNoHook(t *testing.T) {
	w := newWorld(t)
	const hook = `echo begun >> /outside/said; exec sleep 1000`
	for name, end := range map[string]func(a *app){
		"kill": func(a *app) {
			a.must(w.Kill(a.ctx(), a.ID, "KILL"))
			a.must(w.WaitTask(a.ctx(), a.ID, "STOPPED"))
			if got := a.ExitStatus(); got != 137 {
				t.Errorf("it has ended with %d", got)
			}
		},
		"delete": func(a *app) {
			_, err := w.Ctr(a.ctx(), "tasks", "delete", "--force", a.ID)
			if err != nil && !errors.Is(err, os.ErrExist) && !strings.Contains(err.Error(), "137") {
				a.must(err)
			}
			a.must(w.WaitTask(a.ctx(), a.ID, ""))
		},
	} {
		for kind, begin := range map[string]func(a *app){
			"before a sleep": func(a *app) { go func() { _, _ = w.Hibernate(a.ctx(), a.ID) }() },
			"after a wake": func(a *app) {
				a.Sleep()
				go func() { _, _ = w.Wake(a.ctx(), a.ID) }()
			},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				key := map[string]string{"before a sleep": "hook-before-sleep", "after a wake": "hook-after-wake"}[kind]
				a := run(t, w, name+"-"+strings.Fields(kind)[0], map[string]string{key: sh(hook), "hook-timeout": "5m"})
				begin(a)
				a.begun("begun")
				end(a)
			})
		}
	}
}

// An exec that comes while a hook runs undoes the hibernation at once, and the hook is killed.
func TestExecEndsAHook(t *testing.T) {
	w := newWorld(t)
	a := run(t, w, "busy", map[string]string{
		"hook-before-sleep": sh(say + "; sleep 1000 & sleep 1000"), "hook-after-wake": sh(say), "hook-timeout": "5m",
	})
	failed := make(chan error, 1)
	go func() { _, err := w.Hibernate(a.ctx(), a.ID); failed <- err }()
	a.begun("hook-before-sleep")
	out, err := w.Exec(a.ctx(), a.ID, "/bin/echo", "here")
	if err != nil || strings.TrimSpace(out) != "here" {
		t.Errorf("%q, %v", out, err)
	}
	if err := <-failed; err == nil {
		t.Error("it has slept")
	}
	a.begun("hook-after-wake undo")
	a.alone()
	a.GoesOn()
}

// A container that ends by itself while its hook runs ends with its own status.
func TestContainerEndsInAHook(t *testing.T) {
	w := newWorld(t)
	a := run(t, w, "ends", map[string]string{"hook-after-wake": sh("test -e /outside/stay || kill -9 1; sleep 1000"), "hook-timeout": "5m"})
	a.Sleep()
	_, _ = w.Wake(a.ctx(), a.ID)
	a.must(w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	if got := a.ExitStatus(); got != 137 {
		t.Errorf("it has ended with %d", got)
	}
}

package faults

import (
	"fmt"
	"strings"
	"testing"
)

// The cells of the directories in which a shim and runsc keep what they know of a running container, when those can't be
// written: the shim's part of the bundle, and the run-dir. They are so from before a transition until after it.

// locked makes a directory of the world read-only; unlocked takes that back. What is mounted below stays.
func locked(dir func(*app) string) (lock, unlock func(*app)) {
	return func(a *app) {
			a.Helper()
			_, err := a.w.Shell(a.ctx(), fmt.Sprintf("mount --rbind %[1]s %[1]s; mount -o remount,bind,ro %[1]s", dir(a)))
			a.must(err)
		}, func(a *app) {
			a.Helper()
			_, err := a.w.Shell(a.ctx(), "umount -l "+dir(a))
			a.must(err)
		}
}

// crowded makes a directory of the world a file system without a free block; roomy takes that back.
func crowded(dir func(*app) string) (crowd, roomy func(*app)) {
	return func(a *app) {
			a.Helper()
			_, err := a.w.Shell(a.ctx(), fmt.Sprintf(`cp -a %[1]s %[1]s.copy; mount -t tmpfs -o mode=700,size=1m tmpfs %[1]s
cp -a %[1]s.copy/. %[1]s; rm -r %[1]s.copy; cat /dev/zero >%[1]s/filler || true`, dir(a)))
			a.must(err)
		}, func(a *app) {
			a.Helper()
			_, err := a.w.Shell(a.ctx(), fmt.Sprintf(`rm %[1]s/filler; cp -a %[1]s %[1]s.copy; umount -l %[1]s
cp -a %[1]s.copy/. %[1]s; rm -r %[1]s.copy`, dir(a)))
			a.must(err)
		}
}

func ofShim(a *app) string { return a.Bundle() + "/hibernate" }
func runDir(a *app) string { return a.w.RunDir() }

func bundles(block bool) (sleeps, wakes []cell) {
	lockShim, unlockShim := locked(ofShim)
	crowdShim, roomyShim := crowded(ofShim)
	lockRun, unlockRun := locked(runDir)
	faults := []cell{
		{fault: "the shim's files read-only", first: lockShim, mend: unlockShim},
		{fault: "the shim's files full", first: crowdShim, mend: roomyShim},
		{fault: "the run-dir read-only", first: lockRun, mend: unlockRun},
	}
	for _, f := range faults {
		asleep, awake := f, f
		asleep.step, asleep.outcome, asleep.state = "all", "failed", "awake"
		awake.step, awake.outcome, awake.told, awake.state = "all", "failed", "255", "ended" // it waits to be started again
		if block {
			awake.outcome, awake.told, awake.state = "blocked", "", "blocked"
		}
		if strings.HasSuffix(f.fault, "full") { // a log's and a journal's lines are not worth a state
			asleep.outcome, asleep.state = "slept", "asleep"
			awake.outcome, awake.told, awake.state = "restored", "", "awake"
		}
		sleeps = append(sleeps, asleep)
		wakes = append(wakes, awake)
	}
	return sleeps, wakes
}

func TestBundle(t *testing.T) {
	t.Parallel()
	for policy, block := range map[string]bool{"cold": false, "block": true} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, false, map[string]string{"on-restore-failure": fmt.Sprintf("%q", policy)})
			a := l.run("sleeper", nil)
			sleeps, wakes := bundles(block)
			if !block {
				a.walk(toSleep, sleeps)
			}
			a.walk(toWake, wakes)
		})
	}
}

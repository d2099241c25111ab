package faults

import (
	"context"
	"fmt"
	"syscall"
	"testing"
)

// The cells of disks: full ones and read-only ones.

const diskSize = 512 // MiB of the data-dir's file system

// smallDisk gives the lane's data-dir a file system of its own.
func (l *lane) smallDisk() {
	l.Helper()
	_, err := l.w.Shell(l.ctx(), fmt.Sprintf("mount -t tmpfs -o mode=700,size=%dm tmpfs %s", diskSize, l.w.DataDir()))
	l.must(err)
	l.Cleanup(func() {
		if _, err := l.w.Shell(context.Background(), "umount "+l.w.DataDir()); err != nil {
			l.Error(err)
		}
	})
}

// resize changes the size of the data-dir's file system.
func (a *app) resize(kib int) {
	a.Helper()
	_, err := a.w.Shell(a.ctx(), fmt.Sprintf("mount -o remount,size=%dk %s", kib, a.w.DataDir()))
	a.must(err)
}

// full leaves not a block free; roomy takes that back.
func full(a *app) {
	a.Helper()
	var st syscall.Statfs_t
	a.must(syscall.Statfs(a.w.Path(a.w.DataDir()), &st))
	a.resize(max(int((st.Blocks-st.Bfree)*uint64(st.Bsize)>>10), 4))
}

func roomy(a *app) { a.resize(diskSize << 10) }

// readOnly hides the data-dir behind itself, as one that can't be written; writable takes that back.
func readOnly(a *app) {
	a.Helper()
	_, err := a.w.Shell(a.ctx(), fmt.Sprintf("mount --bind %[1]s %[1]s; mount -o remount,bind,ro %[1]s", a.w.DataDir()))
	a.must(err)
}

func writable(a *app) {
	a.Helper()
	_, err := a.w.Shell(a.ctx(), "umount -l "+a.w.DataDir())
	a.must(err)
}

// disks are the cells of a transition whose disk is full, or can't be written.
func disks(block bool) (sleeps, wakes []cell) {
	fills := cell{fault: "disk full", at: full, mend: roomy}
	locks := cell{fault: "read-only", at: readOnly, mend: writable}
	in := func(c cell, step, after, outcome, told, state string) cell {
		c.step, c.after, c.outcome, c.told, c.state = step, after, outcome, told, state
		return c
	}
	sleeps = []cell{
		in(fills, "guard", "begin", "refused", "disk", "awake"),
		in(fills, "checkpoint", "pause", "failed", "space", "awake"),
		in(fills, "commit", "verify", "failed", "space", "awake"),
		in(fills, "free", "commit", "slept", "", "asleep"),
		in(locks, "checkpoint", "pause", "failed", "read-only", "awake"),
		in(locks, "commit", "verify", "failed", "read-only", "awake"),
		in(locks, "free", "commit", "slept", "", "asleep"),
	}
	for i := range sleeps {
		if c := &sleeps[i]; c.fault == locks.fault && c.step == "commit" { // what is half written goes with the next one
			c.mend = func(a *app) { writable(a); a.Sleep() }
		}
	}
	wakes = []cell{in(fills, "claim", "choose", "restored", "", "awake")}
	if block {
		return nil, append(wakes, in(locks, "claim", "choose", "blocked", "read-only", "blocked"))
	}
	return sleeps, append(wakes, in(locks, "claim", "choose", "failed", "255", "ended")) // it waits to be started again
}

func TestDisk(t *testing.T) {
	t.Parallel()
	for policy, block := range map[string]bool{"cold": false, "block": true} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, false, map[string]string{
				"on-restore-failure": fmt.Sprintf("%q", policy), "min-free-disk": `"0"`,
			})
			l.smallDisk()
			a := l.run("sleeper", nil)
			sleeps, wakes := disks(block)
			a.walk(toSleep, sleeps)
			a.walk(toWake, wakes)
		})
	}
}

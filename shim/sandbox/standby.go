package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// A *standby* is a sleeper's next sandbox, booted while it sleeps: nothing of the workload is in it yet, and a wake has only
// to restore. It costs some memory of the node's, charged to the container, and is given back when that gets scarce. Whatever
// becomes of it, the snapshot is all of the workload; a wake that finds none boots one.

// ahead is a standby being made or taken away. Whoever needs the sandbox waits for its end.
type ahead struct {
	cancel context.CancelFunc
	done   chan struct{}
}

const (
	standbyTimeout = 30 * time.Second // for booting one, which nobody waits for
	standbyLook    = 10 * time.Second // between two looks at the node's memory
)

// standBy boots the next sandbox of a workload that has just fallen asleep, where policy wants that, and keeps it for as long as
// the node has memory for it.
func (w *Workload) standBy() {
	w.mu.Lock()
	wanted := w.wantsStandby()
	w.mu.Unlock()
	if !wanted || memoryScarce() {
		return
	}
	if generation := w.bootAhead(); generation != 0 {
		w.keepStandby(generation)
	}
}

// wantsStandby says whether policy is to have a standby now. The caller holds w.mu.
func (w *Workload) wantsStandby() bool {
	switch w.config.Standby {
	case config.StandbyOn:
		return true
	case config.StandbyOften:
		return !w.recent[0].IsZero() && w.opts.Now().Sub(w.recent[0]) < time.Hour
	}
	return false
}

// often is how many wakes within an hour are many.
const often = 3

// noteWake keeps the times of the latest wakes, oldest first. The caller holds w.mu.
func (w *Workload) noteWake() {
	copy(w.recent[:], w.recent[1:])
	w.recent[often-1] = w.opts.Now()
}

// bootAhead boots a sandbox for a sleeper that has none, and returns its generation; 0 when there is none in the end.
func (w *Workload) bootAhead() (generation int) {
	ctx, cancel := context.WithTimeout(context.Background(), standbyTimeout)
	defer cancel()
	end := w.beginAhead(cancel, func() bool { return w.sandboxPid == 0 })
	if end == nil {
		return 0
	}
	defer end()
	if err := w.boot(ctx); err != nil {
		if context.Cause(ctx) != context.Canceled { // whoever cancels it clears it away
			w.opts.Log.Warn("standby", "error", err)
			w.clearAhead()
		}
		return 0
	}
	if err := w.saveState(); err != nil {
		w.opts.Log.Warn("state file", "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announce(nil)
	return w.generation
}

// beginAhead claims a sleeper's sandbox for a change of the standby, if allowed says so under w.mu, until the returned function
// is called; nil: it is not to be had.
func (w *Workload) beginAhead(cancel context.CancelFunc, allowed func() bool) (end func()) {
	return w.claimAhead(lifecycle.Asleep, cancel, allowed)
}

// claimAhead is beginAhead in another state.
func (w *Workload) claimAhead(in lifecycle.Workload, cancel context.CancelFunc, allowed func() bool) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != in || w.killed || w.ahead != nil || !allowed() {
		return nil
	}
	a := &ahead{cancel: cancel, done: make(chan struct{})}
	w.ahead = a
	return func() {
		w.mu.Lock()
		w.ahead = nil
		w.mu.Unlock()
		close(a.done)
	}
}

// bootBeside boots a wake's sandbox while the store is still asked what to restore: whoever needs it waits for it (bootOnce), whoever frees
// the sandbox ends it. Where it fails, or there is little memory, it is booted later.
func (w *Workload) bootBeside(t *transition) {
	if memoryScarce() {
		return
	}
	ctx, cancel := context.WithCancel(t.ctx)
	end := w.claimAhead(lifecycle.Waking, cancel, func() bool { return w.sandboxPid == 0 })
	if end == nil {
		cancel()
		return
	}
	t.beside = true
	w.background.Go(func() {
		defer cancel()
		defer end()
		err := t.step("boot", func(context.Context) error { return w.boot(ctx) })
		if err != nil && !errors.Is(context.Cause(ctx), context.Canceled) { // whoever cancels it clears it away
			w.opts.Log.Warn("boot beside the store", "error", err)
			w.clearAhead()
		}
	})
}

// clearAhead frees what there is of a standby. The caller has claimed it.
func (w *Workload) clearAhead() {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := w.clearSandbox(ctx); err != nil {
		w.opts.Log.Error("the standby could not be freed cleanly", "error", err)
	}
}

// keepStandby gives the standby back when the node's memory gets scarce. It returns when there is none any more.
func (w *Workload) keepStandby(generation int) {
	tick := time.NewTicker(standbyLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.root().ended:
			return
		}
		w.mu.Lock()
		there := w.state == lifecycle.Asleep && w.generation == generation && w.sandboxPid != 0
		w.mu.Unlock()
		if !there {
			return
		}
		if memoryScarce() {
			w.opts.Log.Info("the node's memory is scarce: the standby is given back")
			w.dropStandby(generation)
			return
		}
	}
}

// dropStandby frees a standby, unless a wake has taken it.
func (w *Workload) dropStandby(generation int) {
	if w.aheadEnds(context.Background()) != nil { // it may have ended while its boot is still being noted, which has its own limit
		return
	}
	end := w.beginAhead(func() {}, func() bool { return w.generation == generation })
	if end == nil {
		return
	}
	defer end()
	w.clearAhead()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announce(nil)
}

// aheadEnds waits until nobody is at work on the standby.
func (w *Workload) aheadEnds(ctx context.Context) error {
	w.mu.Lock()
	a := w.ahead
	w.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopAhead ends work on the standby, for whoever frees the sandbox then.
func (w *Workload) stopAhead() {
	w.mu.Lock()
	a := w.ahead
	w.mu.Unlock()
	if a != nil {
		a.cancel()
		<-a.done
	}
}

// scarceShare is the part of all memory below which what is available counts as scarce: one part in so many.
const scarceShare = 16

// memoryScarce says whether the node has little memory left. One that doesn't tell has enough.
func memoryScarce() bool {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false
	}
	total, available := meminfo(data)
	return available < total/scarceShare
}

// meminfo returns two lines of /proc/meminfo, in KiB.
func meminfo(data []byte) (total, available uint64) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &available)
	}
	return total, available
}

package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// transition is one hibernation or wake under way. It runs to its end whoever leaves; its context ends early only by
// activity (a hibernation before its commit), by SIGKILL and by the sandbox's own end.
type transition struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it ended and the workload's state says how
	start  time.Time
	now    func() time.Time
	note   func(step string) // the journal
	from   uint64            // a wake from a snapshot that a person names; 0: the newest
	stale  bool              // a wake that a person asks for over files that have gone on
	older  bool              // a wake whose snapshot others have outrun
	hooked bool              // hook-before-sleep has been begun
	beside bool              // a wake whose sandbox is being booted, or stands ready, before it is known what to restore
	firm   bool              // a hibernation that nobody's use undoes: the sandbox can't be reached, and does not answer

	mu      sync.Mutex // guards the fields below: steps of a wake overlap
	record  *shimv1.Transition
	remarks []string // to be told in the record, whatever its outcome
	err     error    // set before done is closed
}

func newTransition(kind, reason, id string, timeout time.Duration, now func() time.Time, note func(string)) *transition {
	ctx, cancel := context.WithCancelCause(context.Background())
	if timeout > 0 {
		limited, stop := context.WithTimeoutCause(ctx, timeout, context.DeadlineExceeded)
		ctx = limited
		context.AfterFunc(ctx, stop)
	}
	if id == "" {
		id = newID()
	}
	start := now()
	return &transition{
		ctx: ctx, cancel: cancel, done: make(chan struct{}), start: start, now: now, note: note,
		record: &shimv1.Transition{Id: id, Kind: kind, Reason: reason, StartedUnixMs: start.UnixMilli()},
	}
}

func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// step journals, runs and times one step. It does not begin a step after the transition's context ended.
func (t *transition) step(name string, fn func(context.Context) error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return t.always(name, func() error { return fn(t.ctx) })
}

// always is step for what must happen whatever became of the context.
func (t *transition) always(name string, fn func() error) error {
	t.note(name)
	begin := t.now()
	err := fn()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.record.Steps = append(t.record.Steps, &shimv1.Step{
		Name: name, Ms: milliseconds(t.now().Sub(begin)), StartMs: milliseconds(begin.Sub(t.start)),
	})
	return err
}

// remark adds to what the record will tell, once.
func (t *transition) remark(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.remarks, s) {
		t.remarks = append(t.remarks, s)
	}
}

// finish records the outcome. The caller closes done after it has moved the workload's state.
func (t *transition) finish(outcome, detail string, err error) *shimv1.Transition {
	t.mu.Lock()
	defer t.mu.Unlock()
	if detail != "" {
		t.remarks = append([]string{detail}, t.remarks...)
	}
	t.record.Outcome, t.record.Detail, t.err = outcome, strings.Join(t.remarks, "; "), err
	t.record.TotalMs = milliseconds(t.now().Sub(t.start))
	return t.record
}

// result waits for the end, or for ctx.
func (t *transition) result(ctx context.Context) (*shimv1.Transition, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.done:
		return t.record, t.err
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

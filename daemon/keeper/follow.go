package keeper

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

// follower is the keeping of one workload, used by one goroutine.
type follower struct {
	*Keeper
	w       *node.Workload
	tracker *idle.Tracker
	log     *slog.Logger
	mode    idle.Mode
	judged  uint64        // the packets of the newest sample
	silent  time.Duration // the pause after the last unanswered question; 0 after an answer
	failing time.Time     // since when no question was answered; zero when the last was
	alarm   string        // that was raised
}

// silentMax bounds the pause between two questions to a shim that does not answer.
const silentMax = 10 * time.Second

// step samples once and acts. It returns how long to wait for the next step.
func (f *follower) step(ctx context.Context) time.Duration {
	d, err := f.sample(ctx)
	if err != nil {
		f.silent = min(max(f.silent*2, 500*time.Millisecond), silentMax)
		return f.silent
	}
	switch d.Action {
	case idle.Hibernate:
		f.hibernate(ctx)
		return min(d.Next, time.Second)
	case idle.Report:
		f.observed(d)
	}
	if f.w.Watched() && f.w.State() != idle.Awake {
		return f.opts.AsleepEvery
	}
	return d.Next
}

// sample asks the shim, and judges the answer.
func (f *follower) sample(ctx context.Context) (idle.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.SampleTimeout)
	defer cancel()
	activity, err := f.w.Shim.Activity(ctx)
	if !errors.Is(err, context.Canceled) {
		f.w.Answered(err)
	}
	if err != nil {
		f.unmeasured(err)
		return idle.Decision{}, err
	}
	f.silent, f.failing, f.judged = 0, time.Time{}, activity.GetPackets()
	sample := sampleOf(activity)
	sample.ProxyConns, sample.ProxyBytes = f.w.ProxyUse()
	if why := f.opts.Frozen(f.w.Key); why != "" && sample.State == idle.Awake {
		sample.Blockers = append([]idle.Reason{{Code: idle.Frozen, Detail: why}}, sample.Blockers...)
	}
	now := time.Now()
	d := f.tracker.Observe(now, sample)
	f.noteMode(sample.Mode)
	f.raise(meterFault(d))
	f.update(f.w, func(j *Judgement) {
		*j = Judgement{Decision: d, Sample: sample, Memory: activity.GetMemoryBytes(), At: now, Waiting: j.Waiting}
	})
	return d, nil
}

// observed tells and counts what auto would have done.
func (f *follower) observed(d idle.Decision) {
	j, _ := f.Judgement(f.w)
	f.log.Info("observe: would hibernate", "idle", d.IdleFor.Round(time.Millisecond).String(), "memory", j.Memory)
	f.opts.Observed(f.w.Namespace, j.Memory)
}

func (f *follower) noteMode(mode idle.Mode) {
	if mode != f.mode {
		f.log.Info("mode", "mode", string(mode), "before", string(f.mode))
		f.mode = mode
	}
}

// hibernate has the shim put the workload to sleep, in its turn, if it is still idle then.
func (f *follower) hibernate(ctx context.Context) {
	release, ok := f.turn(ctx)
	if !ok {
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, f.opts.HibernateTimeout)
	defer cancel()
	_, err := f.w.Shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "idle", JudgedPackets: &f.judged})
	if errors.Is(err, context.Canceled) {
		return
	}
	f.settle(err)
}

// turn waits for one of the slots. After a wait the workload must be found idle once more.
func (f *follower) turn(ctx context.Context) (release func(), ok bool) {
	if !f.slots.TryAcquire(1) {
		f.update(f.w, func(j *Judgement) { j.Waiting = true })
		err := f.slots.Acquire(ctx, 1)
		f.update(f.w, func(j *Judgement) { j.Waiting = false })
		if err != nil {
			return nil, false
		}
		if d, err := f.sample(ctx); err != nil || d.Action != idle.Hibernate {
			f.slots.Release(1)
			return nil, false
		}
	}
	return f.lend(), true
}

// slot waits for one of the slots.
func (k *Keeper) slot(ctx context.Context) (release func(), err error) {
	if err := k.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return k.lend(), nil
}

// lend returns how an acquired slot is given back, which it is by itself when it is held too long.
func (k *Keeper) lend() (release func()) {
	held := time.AfterFunc(k.opts.SlotTimeout, func() { k.slots.Release(1) })
	return func() {
		if held.Stop() {
			k.slots.Release(1)
		}
	}
}

// settle tells the tracker how a hibernation ended.
func (f *follower) settle(err error) {
	now := time.Now()
	if err == nil {
		f.tracker.Slept(now)
		return
	}
	outcome := outcomeOf(err)
	switch outcome {
	case "aborted":
		f.tracker.Stopped(now)
	case "refused":
		f.tracker.SetBack(now, idle.Refused, shimclient.Message(err))
	default:
		f.tracker.SetBack(now, idle.Failed, shimclient.Message(err))
	}
	f.opts.Refused(outcome)
	f.log.Info("did not hibernate", "error", err)
}

// outcomeOf classes the error of a hibernation.
func outcomeOf(err error) string {
	switch {
	case errdefs.IsAborted(err):
		return "aborted"
	case errdefs.IsFailedPrecondition(err):
		return "refused"
	}
	return "failed"
}

// sampleOf translates a shim's answer.
func sampleOf(a *shimv1.ActivityResponse) idle.Sample {
	s := idle.Sample{
		State:      a.GetState(),
		StateSince: time.UnixMilli(a.GetStateSinceUnixMs()),
		Mode:       idle.Mode(a.GetMode()),
		Timeout:    time.Duration(a.GetIdleTimeoutMs()) * time.Millisecond,
		MinAwake:   time.Duration(a.GetMinAwakeMs()) * time.Millisecond,
		Packets:    a.GetPackets(),
		LastUse:    a.GetLastUse(),
		CPU:        time.Duration(a.GetCpuUsec()) * time.Microsecond,
		Execs:      int(a.GetExecs()),
	}
	for _, lease := range a.GetLeases() {
		s.Leases = append(s.Leases, idle.Lease{Name: lease.GetName(), Expires: time.UnixMilli(lease.GetExpiresUnixMs())})
	}
	for _, blocker := range a.GetBlockers() {
		s.Blockers = append(s.Blockers, idle.Reason{Code: idle.Code(blocker.GetCode()), Detail: blocker.GetDetail()})
	}
	return s
}

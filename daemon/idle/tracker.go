package idle

import (
	"fmt"
	"time"
)

// Tracker follows one workload. It is not safe for concurrent use; its owner serialises the calls.
type Tracker struct {
	policy Policy

	seen   bool   // a sample was taken
	last   Sample // the newest
	cpu    cpuWindow
	meter  meter
	active time.Time // of the last activity
	cause  Code      // what that was

	reported bool // in this episode of idleness (observe)

	slept     time.Time // when we put it to sleep; zero when somebody else did, or when it is awake
	quick     int       // quick wakes in a row
	setback   Reason    // why the last attempt did not end in sleep; no code when it did
	retryAt   time.Time
	retryWait time.Duration
}

// NewTracker returns a tracker that has seen nothing yet.
func NewTracker(policy Policy) *Tracker {
	return &Tracker{policy: policy.withDefaults()}
}

// Observe takes a sample and says what to do. now must not go backwards.
func (t *Tracker) Observe(now time.Time, s Sample) Decision {
	if s.State != Awake {
		t.leave(s)
		return Decision{Timeout: t.timeout(s), SleepsIn: Never, Next: t.interval(s)}
	}
	t.enter(now, s)
	blocking := append(standing(s), t.meter.check(t.last, s)...)
	t.notice(now, s, blocking)
	t.last = s
	return t.decide(now, s, blocking)
}

// leave notes that the workload is not awake: what is measured after the next wake is compared with nothing before it.
func (t *Tracker) leave(s Sample) {
	t.seen = false
	t.last = s
}

// enter starts the idle clock when a workload is first seen awake, or seen again after a sleep.
func (t *Tracker) enter(now time.Time, s Sample) {
	if t.seen && t.last.StateSince.Equal(s.StateSince) {
		return
	}
	t.seen = true
	t.last = s
	t.cpu.reset(now, s.CPU)
	if t.active.Before(s.StateSince) || t.active.IsZero() { // an aborted hibernation has marked it already
		t.mark(now, Fresh)
	}
	t.countWake(s)
}

// countWake judges the wake that ended a sleep of our making.
func (t *Tracker) countWake(s Sample) {
	if t.slept.IsZero() {
		return
	}
	if s.StateSince.Sub(t.slept) < s.Timeout {
		t.quick++
	} else {
		t.quick = 0
	}
	t.slept = time.Time{}
}

// notice marks activity that happened since the last sample.
func (t *Tracker) notice(now time.Time, s Sample, blocking []Reason) {
	window := min(t.policy.CPUWindow, max(s.Timeout, time.Second))
	if at, busy := t.cpu.add(now, s.CPU, window, t.policy.CPUFraction); busy && at.After(t.active) {
		t.mark(at, CPU)
	}
	if s.ProxyBytes != t.last.ProxyBytes {
		t.mark(now, Connections)
	}
	if s.Packets != t.last.Packets {
		t.mark(now, Traffic)
	}
	if len(blocking) > 0 {
		t.mark(now, blocking[0].Code)
	}
}

// mark resets the idle clock and ends the episode.
func (t *Tracker) mark(at time.Time, cause Code) {
	t.active, t.cause, t.reported = at, cause, false
}

// decide weighs what is known. Order of reasons: what stands, the mode, a setback, the clocks.
func (t *Tracker) decide(now time.Time, s Sample, blocking []Reason) Decision {
	d := Decision{IdleFor: now.Sub(t.active), Timeout: t.timeout(s)}
	left := t.left(now, s, &d)
	modes := modeReason(s.Mode)
	d.SleepsIn, d.Next = left, t.interval(s)
	clocks := d.Reasons
	if len(blocking) > 0 || len(modes) > 0 {
		d.SleepsIn = Never
		clocks = nil // they would tell of a sleep that doesn't come
	} else if left > 0 {
		d.Next = max(min(d.Next, left), time.Millisecond)
	}
	d.Reasons = append(append(blocking, modes...), clocks...)
	if len(blocking) > 0 || left > 0 {
		return d
	}
	d.Action = t.act(s.Mode)
	return d
}

// act says what an idle workload's mode wants.
func (t *Tracker) act(mode Mode) Action {
	switch {
	case mode == Auto:
		return Hibernate
	case mode == Observe && !t.reported:
		t.reported = true
		return Report
	default:
		return Wait
	}
}

// left returns the longest of the waits that remain, and adds the reasons for each to d.
func (t *Tracker) left(now time.Time, s Sample, d *Decision) time.Duration {
	var left time.Duration
	wait := func(until time.Time, reason func(time.Duration) Reason) {
		if remaining := until.Sub(now); remaining > 0 {
			left = max(left, remaining)
			d.Reasons = append(d.Reasons, reason(remaining))
		}
	}
	wait(t.retryAt, func(in time.Duration) Reason {
		return Reason{t.setback.Code, fmt.Sprintf("%s; tried again in %s", t.setback.Detail, round(in))}
	})
	wait(t.active.Add(d.Timeout), func(in time.Duration) Reason { return clockReason(t.cause, s.LastUse, d.IdleFor, in) })
	wait(s.StateSince.Add(s.MinAwake), func(in time.Duration) Reason {
		return Reason{MinAwake, fmt.Sprintf("woke %s ago, stays awake at least %s", round(now.Sub(s.StateSince)), s.MinAwake)}
	})
	return left
}

// timeout is the configured one, doubled for each quick wake in a row beyond those forgiven.
func (t *Tracker) timeout(s Sample) time.Duration {
	timeout := max(s.Timeout, 0)
	for range t.quick - t.policy.QuickWakes {
		if timeout*2 > t.policy.MaxTimeout {
			return max(timeout, t.policy.MaxTimeout)
		}
		timeout *= 2
	}
	return timeout
}

// interval between samples: a twentieth of the timeout, so that what is noticed late is late by 5 % at most, but no
// less than Policy.Interval or a quarter of a short timeout, and no more than Policy.MaxInterval.
func (t *Tracker) interval(s Sample) time.Duration {
	floor := max(min(t.policy.Interval, s.Timeout/4), 10*time.Millisecond)
	return min(max(t.timeout(s)/20, floor), t.policy.MaxInterval)
}

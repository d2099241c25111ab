package idle

import "time"

// Slept tells that our request put the workload to sleep at the given time.
func (t *Tracker) Slept(now time.Time) {
	t.slept = now
	t.clearSetback()
}

// Stopped tells that activity aborted our request: the idle clock starts again.
func (t *Tracker) Stopped(now time.Time) {
	t.mark(now, Aborted)
	t.clearSetback()
}

// SetBack tells that our request was refused (code Refused) or failed (Failed), and why. The next is made after a wait
// that doubles from Policy.RetryMin to Policy.RetryMax.
func (t *Tracker) SetBack(now time.Time, code Code, detail string) {
	t.retryWait = min(max(t.retryWait*2, t.policy.RetryMin), t.policy.RetryMax)
	t.retryAt = now.Add(t.retryWait)
	t.setback = Reason{code, detail}
}

func (t *Tracker) clearSetback() {
	t.setback, t.retryAt, t.retryWait = Reason{}, time.Time{}, 0
}

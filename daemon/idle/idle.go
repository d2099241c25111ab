// Package idle decides when a workload may go to sleep. It is pure: it has no clock, starts nothing and calls nobody.
// The caller samples a workload, hands the sample and the present time to a Tracker, and acts on the Decision.
//
// Vocabulary:
//
//   - sample: what the shim measured at one moment, and what the wake proxy knows.
//   - activity: something in a sample that proves use: packets, CPU, a live exec, a lease, a blocker, proxied bytes.
//   - idle clock: the time since the last activity.
//   - timeout: how long the idle clock must run. It doubles after repeated quick wakes, up to Policy.MaxTimeout.
//   - quick wake: one that comes within the configured timeout after the daemon put the workload to sleep.
//   - episode: one stretch of idleness; mode observe tells once in each what auto would have done.
//   - reason: why a workload is awake, with a stable code for machines and a sentence for people.
//
// A Tracker is all that the daemon remembers about idleness; a new daemon starts with fresh ones, so a restart can only
// make a workload stay awake longer.
package idle

import "time"

// Policy holds the numbers that no workload sets for itself. The zero value of a field means its default.
type Policy struct {
	// CPUFraction of one core, over CPUWindow, above which computing is activity. Default 0.05; negative for any.
	CPUFraction float64
	// CPUWindow is shortened to the workload's timeout where that is shorter. Default 10 s.
	CPUWindow time.Duration
	// MaxTimeout is what quick wakes can lengthen a timeout to. A longer configured timeout stays. Default 30 min.
	MaxTimeout time.Duration
	// QuickWakes in a row that are forgiven before the timeout doubles. Default 1.
	QuickWakes int
	// RetryMin and RetryMax bound the wait after a refused or failed hibernation. Defaults 10 s and 5 min.
	RetryMin, RetryMax time.Duration
	// Interval between two samples, where the timeout does not want more (a quarter of a short one) or allow less (a
	// twentieth of a long one, up to MaxInterval). Defaults 1 s and 5 s, half of the CPU window.
	Interval, MaxInterval time.Duration
}

// withDefaults returns p with its zero fields filled in.
func (p Policy) withDefaults() Policy {
	setDefault(&p.CPUFraction, 0.05)
	setDefault(&p.CPUWindow, 10*time.Second)
	setDefault(&p.MaxTimeout, 30*time.Minute)
	setDefault(&p.QuickWakes, 1)
	setDefault(&p.RetryMin, 10*time.Second)
	setDefault(&p.RetryMax, 5*time.Minute)
	setDefault(&p.Interval, time.Second)
	setDefault(&p.MaxInterval, max(5*time.Second, p.Interval))
	return p
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Mode says who decides that a workload sleeps.
type Mode string

// The modes. Anything else counts as off: a daemon that does not know a mode leaves the workload alone.
const (
	Auto    Mode = "auto"    // the daemon, when the workload is idle
	Observe Mode = "observe" // nobody; the daemon says what auto would do
	Manual  Mode = "manual"  // a person
	Off     Mode = "off"     // nobody
)

// Awake is the only state of a workload in which idleness is judged.
const Awake = "awake"

// Sample is one measurement of one workload. Counters never fall while a workload lives; one that does is taken as new.
type Sample struct {
	State      string
	StateSince time.Time
	Mode       Mode
	// Timeout and MinAwake as configured; zero or less means no waiting.
	Timeout, MinAwake time.Duration
	// Packets that count as activity, both directions.
	Packets uint64
	// LastUse is whose packet was counted last, as people read it; empty when that isn't known.
	LastUse string
	// CPU time used so far.
	CPU time.Duration
	// Execs that are live.
	Execs int
	// Leases and Blockers as the shim tells them.
	Leases   []Lease
	Blockers []Reason
	// ProxyConns are held or being drained by the wake proxy, ProxyBytes is what went through so far.
	ProxyConns int
	ProxyBytes uint64
}

// Lease keeps a workload awake until it expires.
type Lease struct {
	Name    string
	Expires time.Time
}

// Action is what the caller should do now.
type Action int

// The actions.
const (
	Wait      Action = iota
	Hibernate        // ask the shim to hibernate, and tell the Tracker how that ended
	Report           // tell that auto would hibernate now (mode observe, once per episode)
)

// Never is the SleepsIn of a workload that will not sleep while its reasons stand.
const Never = time.Duration(-1)

// Decision is the judgement about one sample.
type Decision struct {
	Action Action
	// Reasons for being awake, the most decisive first; empty when asleep, or about to be.
	Reasons []Reason
	// IdleFor is the idle clock, SleepsIn what is left to wait (Never), Timeout as lengthened.
	IdleFor, SleepsIn, Timeout time.Duration
	// Next says when the next sample is wanted, counted from this one.
	Next time.Duration
}

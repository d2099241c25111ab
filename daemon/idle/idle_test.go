package idle_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/idle"
)

var begin = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// story plays a workload to a tracker, with a clock of its own.
type story struct {
	t       *testing.T
	tracker *idle.Tracker
	now     time.Time
	sample  idle.Sample
	got     idle.Decision
}

func newStory(t *testing.T, mode idle.Mode) *story {
	s := &story{t: t, tracker: idle.NewTracker(idle.Policy{}), now: begin}
	s.sample = idle.Sample{
		State: idle.Awake, StateSince: begin, Mode: mode,
		Timeout: 5 * time.Minute, MinAwake: time.Minute,
	}
	s.observe()
	return s
}

func (s *story) observe() { s.got = s.tracker.Observe(s.now, s.sample) }

// pass lets time go by as the tracker wants to be asked, until it asks for action or d is over.
func (s *story) pass(d time.Duration) *story {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end) && s.got.Action == idle.Wait; {
		if s.got.Next <= 0 {
			s.t.Fatalf("next sample wanted in %s", s.got.Next)
		}
		s.now = s.now.Add(min(s.got.Next, end.Sub(s.now)))
		s.observe()
	}
	return s
}

// state changes the workload's state now, and observes it.
func (s *story) state(state string) *story {
	s.sample.State, s.sample.StateSince = state, s.now
	s.observe()
	return s
}

// sleep goes to sleep by the daemon's hand for d, then wakes.
func (s *story) sleep(d time.Duration) *story {
	s.tracker.Slept(s.now)
	s.state("asleep")
	s.now = s.now.Add(d)
	return s.state(idle.Awake)
}

func (s *story) wantAction(want idle.Action) *story {
	s.t.Helper()
	if s.got.Action != want {
		s.t.Fatalf("at +%s: action %v, want %v; reasons %v", s.now.Sub(begin), s.got.Action, want, s.got.Reasons)
	}
	return s
}

func (s *story) wantAt(want time.Duration) *story {
	s.t.Helper()
	if got := s.now.Sub(begin); got < want || got > want+want/20 {
		s.t.Fatalf("acted at +%s, want +%s and at most 5 %% more", got, want)
	}
	return s
}

func (s *story) wantReasons(want ...idle.Code) *story {
	s.t.Helper()
	var got []idle.Code
	for _, reason := range s.got.Reasons {
		if reason.Detail == "" {
			s.t.Errorf("reason %s has no detail", reason.Code)
		}
		got = append(got, reason.Code)
	}
	if len(got) != len(want) {
		s.t.Fatalf("reasons %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			s.t.Fatalf("reasons %v, want %v", got, want)
		}
	}
	return s
}

func TestSleepsAfterTheTimeout(t *testing.T) {
	s := newStory(t, idle.Auto).wantReasons(idle.Fresh, idle.MinAwake)
	s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(5 * time.Minute).wantReasons()
	if s.got.SleepsIn != 0 || s.got.IdleFor < 5*time.Minute {
		t.Errorf("idle for %s, sleeps in %s", s.got.IdleFor, s.got.SleepsIn)
	}
}

func TestMinAwakeOutlastsAShortTimeout(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.sample.Timeout = 2 * time.Second
	s.observe()
	s.pass(30 * time.Second).wantAction(idle.Wait).wantReasons(idle.MinAwake)
	s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(time.Minute)
}

// TestActivity is the matrix of what counts: each kind happens at +2 min, and sleep comes 5 min after it.
func TestActivity(t *testing.T) {
	for _, test := range []struct {
		name   string
		use    func(*idle.Sample)
		reason idle.Code
	}{
		{"packets", func(s *idle.Sample) { s.Packets++ }, idle.Traffic},
		{"a new packet counter", func(s *idle.Sample) { s.Packets = 3 }, idle.Traffic},
		{"cpu", func(s *idle.Sample) { s.CPU += 600 * time.Millisecond }, idle.CPU},
		{"proxied bytes", func(s *idle.Sample) { s.ProxyBytes += 10 }, idle.Connections},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t, idle.Auto)
			s.sample.Packets = 7
			s.observe()
			s.pass(2 * time.Minute)
			test.use(&s.sample)
			s.observe()
			s.wantReasons(test.reason).wantAction(idle.Wait)
			s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(7 * time.Minute)
		})
	}
}

// TestNoActivity: what must not keep a workload awake.
func TestNoActivity(t *testing.T) {
	for _, test := range []struct {
		name string
		use  func(*idle.Sample)
	}{
		{"cpu at 4 %", func(s *idle.Sample) { s.CPU += 400 * time.Millisecond }},
		{"a new cpu counter", func(s *idle.Sample) { s.CPU = 0 }},
		{"a connection that moves nothing", func(s *idle.Sample) { s.ProxyConns = 1 }},
		{"a mode blocker of the shim's", func(s *idle.Sample) { s.Blockers = []idle.Reason{{Code: "mode-auto", Detail: "x"}} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t, idle.Auto)
			s.sample.CPU = 2 * time.Second
			s.sample.StateSince = begin.Add(-time.Hour)
			s.observe()
			s.pass(2 * time.Minute)
			test.use(&s.sample)
			s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(5 * time.Minute)
		})
	}
}

func TestSteadyCPUKeepsAwake(t *testing.T) {
	for _, test := range []struct {
		name     string
		fraction float64
		want     idle.Action
	}{{"6 %", 0.06, idle.Wait}, {"4 %", 0.04, idle.Hibernate}} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t, idle.Auto)
			for end := s.now.Add(time.Hour); s.now.Before(end) && s.got.Action == idle.Wait; {
				s.sample.CPU += time.Duration(test.fraction * float64(s.got.Next))
				s.now = s.now.Add(s.got.Next)
				s.observe()
			}
			s.wantAction(test.want)
		})
	}
}

func TestNegativeFractionMeansAnyUse(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.tracker = idle.NewTracker(idle.Policy{CPUFraction: -1})
	s.observe()
	s.pass(2 * time.Minute)
	s.sample.CPU += time.Millisecond
	s.observe()
	s.wantReasons(idle.CPU)
	s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(7 * time.Minute)
}

func TestRestoreWorkIsNotUse(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.sample.Timeout, s.sample.MinAwake = 2*time.Second, 0
	s.observe()
	s.pass(time.Minute).wantAction(idle.Hibernate)
	s.tracker.Slept(s.now)
	s.state("asleep")
	s.now = s.now.Add(time.Hour)
	s.sample.CPU += 3 * time.Second // the restore, before it is awake
	s.state(idle.Awake).wantReasons(idle.Fresh)
	woke := s.now
	s.pass(time.Minute).wantAction(idle.Hibernate)
	if took := s.now.Sub(woke); took > 2200*time.Millisecond {
		t.Errorf("slept again after %s, want 2 s", took)
	}
}

// TestStandingReasons: what stops the clock while it holds, with a full timeout after it.
func TestStandingReasons(t *testing.T) {
	expires := begin.Add(time.Hour)
	for _, test := range []struct {
		name   string
		begin  func(*idle.Sample)
		reason []idle.Code
	}{
		{"exec", func(s *idle.Sample) { s.Execs = 1 }, []idle.Code{idle.Exec}},
		{"lease", func(s *idle.Sample) { s.Leases = []idle.Lease{{Name: "x", Expires: expires}} }, []idle.Code{idle.LeaseHeld}},
		{"blocker", func(s *idle.Sample) { s.Blockers = []idle.Reason{{Code: "terminal", Detail: "a terminal"}} }, []idle.Code{"terminal"}},
		{"exec told twice", func(s *idle.Sample) {
			s.Execs = 1
			s.Blockers = []idle.Reason{{Code: idle.Exec, Detail: "sh"}}
		}, []idle.Code{idle.Exec}},
		{"all", func(s *idle.Sample) {
			s.Execs, s.Leases = 1, []idle.Lease{{Name: "x", Expires: expires}, {Name: "y", Expires: expires.Add(1)}}
			s.Blockers = []idle.Reason{{Code: "paused", Detail: "paused by a person"}}
		}, []idle.Code{"paused", idle.Exec, idle.LeaseHeld}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStory(t, idle.Auto).pass(2 * time.Minute)
			before := s.sample
			test.begin(&s.sample)
			s.pass(20 * time.Minute).wantAction(idle.Wait)
			if s.got.SleepsIn != idle.Never || s.got.IdleFor != 0 {
				t.Errorf("sleeps in %s, idle for %s", s.got.SleepsIn, s.got.IdleFor)
			}
			s.wantReasons(test.reason...)
			s.sample = before
			s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(27 * time.Minute)
		})
	}
}

func TestModes(t *testing.T) {
	for _, test := range []struct {
		mode   idle.Mode
		reason idle.Code
	}{{idle.Manual, idle.ModeManual}, {idle.Off, idle.ModeOff}, {"", idle.ModeOff}, {"future", idle.ModeOff}} {
		t.Run(string(test.mode), func(t *testing.T) {
			s := newStory(t, test.mode).pass(time.Hour).wantAction(idle.Wait).wantReasons(test.reason)
			if s.got.SleepsIn != idle.Never || s.got.IdleFor != time.Hour {
				t.Errorf("sleeps in %s, idle for %s", s.got.SleepsIn, s.got.IdleFor)
			}
		})
	}
}

func TestObserveReportsOncePerEpisode(t *testing.T) {
	s := newStory(t, idle.Observe)
	for range 2 {
		s.pass(time.Hour).wantAction(idle.Report).wantReasons(idle.ModeObserve)
		s.got.Action = idle.Wait
		s.pass(time.Hour).wantAction(idle.Wait)
		s.sample.Packets++
	}
}

func TestStatesThatAreNotAwake(t *testing.T) {
	for _, state := range []string{"created", "hibernating", "asleep", "waking", "blocked", "ended", ""} {
		s := newStory(t, idle.Auto)
		s.state(state).pass(time.Hour).wantAction(idle.Wait).wantReasons()
		if s.got.SleepsIn != idle.Never {
			t.Errorf("%q sleeps in %s", state, s.got.SleepsIn)
		}
	}
}

func TestQuickWakesLengthenTheTimeout(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.pass(time.Hour).wantAction(idle.Hibernate)
	wants := []time.Duration{5, 10, 20, 30, 30}
	for i, want := range wants {
		s.sleep(time.Second)
		if s.got.Timeout != want*time.Minute {
			t.Fatalf("after %d quick wakes the timeout is %s, want %d min", i+1, s.got.Timeout, want)
		}
		woke := s.now
		s.pass(2 * time.Hour).wantAction(idle.Hibernate)
		if took := s.now.Sub(woke); took < s.got.Timeout || took > s.got.Timeout*21/20 {
			t.Errorf("slept after %s, timeout %s", took, s.got.Timeout)
		}
	}
	if s.sleep(time.Hour); s.got.Timeout != 5*time.Minute {
		t.Errorf("after a long sleep the timeout is %s", s.got.Timeout)
	}
}

func TestSleepOfAnothersMakingIsNoQuickWake(t *testing.T) {
	s := newStory(t, idle.Auto)
	for range 4 {
		s.state("asleep")
		s.now = s.now.Add(time.Second)
		s.state(idle.Awake)
	}
	if s.got.Timeout != 5*time.Minute {
		t.Errorf("timeout %s after sleeps by hand", s.got.Timeout)
	}
}

func TestLongTimeoutIsNotShortened(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.sample.Timeout = time.Hour
	for range 3 {
		s.sleep(time.Second)
	}
	if s.got.Timeout != time.Hour {
		t.Errorf("timeout %s, want the configured hour", s.got.Timeout)
	}
}

func TestRefusalBacksOff(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.pass(time.Hour).wantAction(idle.Hibernate)
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		s.tracker.SetBack(s.now, idle.Refused, "no room on the disk")
		tried := s.now
		s.observe()
		s.wantAction(idle.Wait).wantReasons(idle.Refused)
		if !strings.Contains(s.got.Reasons[0].Detail, "no room on the disk") {
			t.Errorf("the shim's words are missing: %q", s.got.Reasons[0].Detail)
		}
		s.pass(time.Hour).wantAction(idle.Hibernate)
		if took := s.now.Sub(tried); took != want*time.Second {
			t.Fatalf("tried again after %s, want %d s", took, want)
		}
	}
	s.sleep(time.Hour).wantReasons(idle.Fresh, idle.MinAwake)
}

func TestAbortRestartsTheClock(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.pass(time.Hour).wantAction(idle.Hibernate)
	s.state("hibernating")
	s.state(idle.Awake)
	s.now = s.now.Add(time.Millisecond)
	s.tracker.Stopped(s.now)
	s.observe()
	s.wantReasons(idle.Aborted, idle.MinAwake)
	s.pass(time.Hour).wantAction(idle.Hibernate).wantAt(10 * time.Minute)
}

func TestIntervals(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0:                      10 * time.Millisecond,
		400 * time.Millisecond: 100 * time.Millisecond,
		2 * time.Second:        500 * time.Millisecond,
		10 * time.Second:       time.Second,
		time.Minute:            3 * time.Second,
		5 * time.Minute:        5 * time.Second,
		24 * time.Hour:         5 * time.Second,
	} {
		s := newStory(t, idle.Manual)
		s.sample.Timeout = timeout
		s.observe()
		if s.got.Next != want {
			t.Errorf("timeout %s is sampled each %s, want %s", timeout, s.got.Next, want)
		}
	}
}

// Traffic is told with whose it was and how long ago.
func TestReasonNamesTheLastUse(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.pass(time.Minute)
	s.sample.Packets, s.sample.LastUse = s.sample.Packets+1, "tcp 10.0.0.3:40000 → 10.0.0.2:80"
	s.observe()
	s.pass(20 * time.Second)
	if len(s.got.Reasons) == 0 || s.got.Reasons[0].Code != idle.Traffic {
		t.Fatalf("reasons %v", s.got.Reasons)
	}
	const want = "last traffic 20s ago (tcp 10.0.0.3:40000 → 10.0.0.2:80); sleeps in 4m40s unless used"
	if got := s.got.Reasons[0].Detail; got != want {
		t.Errorf("told %q, not %q", got, want)
	}
}

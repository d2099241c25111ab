package idle

import (
	"fmt"
	"strings"
	"time"
)

// Reason says why a workload is awake.
type Reason struct {
	Code   Code
	Detail string
}

// Code is stable and machine-readable. The shim's blockers bring codes of their own (terminal, host-network, …).
type Code string

// The codes that this package gives.
const (
	ModeOff     Code = "mode-off"
	ModeManual  Code = "mode-manual"
	ModeObserve Code = "mode-observe"
	Exec        Code = "exec"
	LeaseHeld   Code = "lease"
	Refused     Code = "refused" // the shim would not hibernate it
	Failed      Code = "failed"  // the shim tried and failed, or did not answer
	MinAwake    Code = "min-awake"
	Traffic     Code = "traffic"
	CPU         Code = "cpu"
	Connections Code = "connections"
	Fresh       Code = "fresh" // seen for the first time, or just woken: the idle clock starts
	Aborted     Code = "activity"
	Frozen      Code = "frozen" // a person wants it awake
	Meter       Code = "meter"  // the shim's counters stand still though data moved
)

// standing lists the reasons that hold as long as what they name does: they stop the idle clock.
func standing(s Sample) []Reason {
	var reasons []Reason
	for _, blocker := range s.Blockers {
		if !strings.HasPrefix(string(blocker.Code), "mode-") {
			reasons = append(reasons, blocker)
		}
	}
	if s.Execs > 0 && !has(reasons, Exec) {
		reasons = append(reasons, Reason{Exec, fmt.Sprintf("%d exec sessions are live", s.Execs)})
	}
	if len(s.Leases) > 0 && !has(reasons, LeaseHeld) {
		reasons = append(reasons, leaseReason(s.Leases))
	}
	return reasons
}

func leaseReason(leases []Lease) Reason {
	longest := leases[0]
	for _, lease := range leases[1:] {
		if lease.Expires.After(longest.Expires) {
			longest = lease
		}
	}
	return Reason{LeaseHeld, fmt.Sprintf("lease %q until %s", longest.Name, longest.Expires.UTC().Format(time.RFC3339))}
}

// modeReason says why the mode keeps the daemon from acting; none for auto.
func modeReason(mode Mode) []Reason {
	switch mode {
	case Auto:
		return nil
	case Observe:
		return []Reason{{ModeObserve, "mode is observe: the daemon only says what it would do"}}
	case Manual:
		return []Reason{{ModeManual, "mode is manual: it sleeps only when a person says so"}}
	case Off:
		return []Reason{{ModeOff, "mode is off: it never sleeps"}}
	default:
		return []Reason{{ModeOff, fmt.Sprintf("mode %q is not known to this daemon", mode)}}
	}
}

// clockReason says what set the idle clock last, and what that was worth.
func clockReason(code Code, use string, idleFor, left time.Duration) Reason {
	ago, in := round(idleFor), round(left)
	what := map[Code]string{
		Traffic:     "last traffic %s ago",
		CPU:         "computed %s ago",
		Connections: "the wake proxy moved data %s ago",
		Fresh:       "watched for %s so far",
		Aborted:     "activity stopped a hibernation %s ago",
	}[code]
	if what == "" {
		what = "kept awake until %s ago (" + string(code) + ")"
	}
	detail := fmt.Sprintf(what, ago)
	if code == Traffic && use != "" {
		detail += " (" + use + ")"
	}
	return Reason{code, fmt.Sprintf("%s; sleeps in %s unless used", detail, in)}
}

func has(reasons []Reason, code Code) bool {
	for _, reason := range reasons {
		if reason.Code == code {
			return true
		}
	}
	return false
}

// round drops digits that nobody reads.
func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

package keepalive

import (
	"net/netip"
	"time"
)

// Flow names a connection as the absent end sees it.
type Flow struct{ Own, Peer netip.AddrPort }

// State is what the absent end would say of a connection.
type State struct {
	Next, Expected uint32 // the number of its own next byte, and of its peer's
	Window         uint16
	Stamped        bool
	Value, Recent  uint32 // its clock when it went, and the peer's newest value
}

// Learn reads a state from an acknowledgement that the end has sent. One that says more than that is of no use: what was
// lost on the way (selective acknowledgements), or that the window is closed.
func Learn(answer Segment) (State, bool) {
	if answer.Flags != ACK || answer.Length != 0 || answer.Others || answer.Window == 0 {
		return State{}, false
	}
	return State{
		Next: answer.Seq, Expected: answer.Ack, Window: answer.Window,
		Stamped: answer.Stamped, Value: answer.Value, Recent: answer.Echo,
	}, true
}

// Probe are the sequence and acknowledgement numbers of a keep-alive probe.
func (s State) Probe() (seq, ack uint32) { return s.Expected - 1, s.Next }

// Verdict is what is to become of a segment.
type Verdict int

// The verdicts.
const (
	Pass   Verdict = iota // it is for the absent end
	Answer                // it is a probe, and this is the answer
	Silent                // it is a probe that comes too soon to be answered
)

// Pause is the time for which the connection's next probes are not answered. It keeps two who believe different things from
// telling each other so without end; the sandbox's own stack has the same limit.
const Pause = 500 * time.Millisecond

// Table are the connections that are known. It is not for several goroutines at a time.
type Table struct{ known map[Flow]*entry }

type entry struct {
	State
	answered time.Time
}

// Add makes a connection known; one of the same flow is replaced.
func (t *Table) Add(f Flow, s State) {
	if t.known == nil {
		t.known = map[Flow]*entry{}
	}
	t.known[f] = &entry{State: s}
}

// Len is how many connections are known.
func (t *Table) Len() int { return len(t.known) }

// All calls fn for each connection.
func (t *Table) All(fn func(Flow, State)) {
	for f, e := range t.known {
		fn(f, e.State)
	}
}

// Judge says what is to become of a segment, and for [Answer] what to send.
func (t *Table) Judge(s Segment, now time.Time) (Verdict, Segment) {
	e := t.known[Flow{Own: s.To, Peer: s.From}]
	if e == nil || !e.asks(s) {
		return Pass, Segment{}
	}
	if e.Stamped && int32(s.Value-e.Recent) > 0 { // one that was overtaken is answered as well
		e.Recent = s.Value
	}
	if !e.answered.IsZero() && now.Sub(e.answered) < Pause {
		return Silent, Segment{}
	}
	e.answered = now
	return Answer, Segment{
		From: s.To, To: s.From, Seq: e.Next, Ack: e.Expected, Flags: ACK, Window: e.Window,
		Stamped: e.Stamped, Value: e.Value, Echo: e.Recent,
	}
}

// asks tells a keep-alive probe from all else.
func (e *entry) asks(s Segment) bool {
	seq, ack := e.Probe()
	return s.Flags == ACK && s.Length <= 1 && s.Seq == seq && s.Ack == ack && !s.Others &&
		s.Stamped == e.Stamped
}

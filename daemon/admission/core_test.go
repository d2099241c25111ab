package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script runs the steps of a case against a core, and checks what each settles.
//
//	+ns/id:need     a ticket comes
//	-ns/id          it is given back, or its owner leaves
//	ns/id=state     the shim tells
//	gone ns/id      the workload leaves the node
//	mem:free:evictable
//	wait:duration
//
// After "→" stand the tickets that are granted, in order; "!" before one says that it is refused.
type script struct {
	t       *testing.T
	core    *core
	now     time.Time
	mem     memory
	tickets map[string][]*ticket
}

func (s *script) step(text string) {
	s.t.Helper()
	do, want, _ := strings.Cut(text, " → ")
	var settled []*ticket
	switch name, value, _ := strings.Cut(do, ":"); {
	case do[0] == '+':
		key := keyOf(name[1:])
		var need uint64
		fmt.Sscan(value, &need)
		t := s.core.enter(s.now, key, need)
		s.tickets[name[1:]] = append(s.tickets[name[1:]], t)
		if t.refusal != nil {
			settled = append(settled, t)
		}
	case do[0] == '-':
		all := s.tickets[name[1:]]
		s.core.leave(all[0])
		s.tickets[name[1:]] = all[1:]
	case name == "mem":
		var free, evictable uint64
		fmt.Sscanf(value, "%d:%d", &free, &evictable)
		s.mem = memory{known: true, available: free, evictable: func() uint64 { return evictable }}
	case name == "wait":
		d, err := time.ParseDuration(value)
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
	case strings.HasPrefix(do, "gone "):
		s.core.gone(keyOf(do[5:]))
	default:
		id, state, ok := strings.Cut(do, "=")
		if !ok {
			s.t.Fatalf("step %q", do)
		}
		s.core.state(s.now, keyOf(id), state, 10)
	}
	more, _ := s.core.step(s.now, func() memory { return s.mem })
	var got []string
	for _, t := range append(settled, more...) {
		id := t.key.String()
		if t.refusal != nil {
			id = "!" + t.refusal.Reason + " " + id
		}
		got = append(got, id)
	}
	if strings.Join(got, " ") != want {
		s.t.Fatalf("%s: settled %q, want %q", do, strings.Join(got, " "), want)
	}
}

func keyOf(s string) node.Key {
	ns, id, _ := strings.Cut(s, "/")
	return node.Key{Namespace: ns, ID: id}
}

func TestDecisions(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		steps  []string
	}{
		"turns": {Limits{Wakes: 2, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/2:1 → a/2", "+a/3:1", "+a/4:1", "a/1=waking", "a/1=awake → a/3", "-a/1", "-a/3 → a/4",
		}},
		"a wake counts until the shim tells its end": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "a/1=waking", "+a/2:1", "-a/1", "wait:20s", "a/1=awake → a/2",
		}},
		"namespaces in rotation": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/2:1", "+a/3:1", "+a/4:1", "+b/1:1", "+b/2:1", "+c/1:1",
			"-a/1 → a/2", "-a/2 → b/1", "-b/1 → c/1", "-c/1 → a/3", "-a/3 → b/2", "-b/2 → a/4", "-a/4",
		}},
		"one wake, many tickets": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/1:1 → a/1", "+a/2:1", "-a/1", "-a/1 → a/2",
		}},
		"a wake of the shim's own counts, and is joined": {Limits{Wakes: 1, Queue: 9}, []string{
			"a/1=waking", "+a/2:1", "+a/1:1 → a/1", "-a/1", "a/1=awake → a/2",
		}},
		"wakes of shims' own may be more": {Limits{Wakes: 1, Queue: 9}, []string{
			"a/1=waking", "a/2=waking", "a/3=waking", "+a/4:1", "a/1=awake", "a/2=awake", "gone a/3 → a/4",
		}},
		"a ticket that waits learns that its wake began": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/2:1", "a/2=waking → a/2",
		}},
		"a shim that hangs keeps nobody": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/2:1", "wait:1999ms", "wait:1ms → a/2", "+a/3:1", "a/1=waking", "-a/2", "a/1=awake → a/3",
		}},
		"nor one that hangs in the middle": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "a/1=waking", "+a/2:1", "wait:29s", "wait:1s → a/2",
		}},
		"the queue is full": {Limits{Wakes: 1, Queue: 2}, []string{
			"+a/1:1 → a/1", "+a/2:1", "+b/1:1", "+b/2:1 → !queue-full b/2", "+a/1:1 → a/1", "-a/2", "+b/2:1",
		}},
		"who leaves is passed over": {Limits{Wakes: 1, Queue: 9}, []string{
			"+a/1:1 → a/1", "+a/2:1", "+b/1:1", "-a/2", "-a/1 → b/1", "-b/1",
		}},
		"memory": {Limits{Wakes: 3, Queue: 9, Spare: 10}, []string{
			"mem:100:0", "+a/1:60 → a/1", "+a/2:30 → a/2", "+a/3:1", "mem:40:0", "-a/1", "a/2=waking", "mem:41:0 → a/3",
		}},
		"room for it may be made": {Limits{Wakes: 3, Queue: 9, Spare: 10}, []string{
			"mem:50:20", "+a/1:60", "wait:1h", "mem:70:0 → a/1",
		}},
		"too large for the node": {Limits{Wakes: 3, Queue: 9, Spare: 10}, []string{
			"mem:50:19", "+a/1:60", "wait:999ms", "+a/2:10 → a/2", "wait:1ms → !memory a/1",
		}},
		"small ones pass a large one, for a while": {Limits{Wakes: 1, Queue: 99}, []string{
			"mem:50:50", "+a/big:60", "+a/1:1 → a/1", "+a/2:1", "+a/3:1", "+a/4:1", "+a/5:1", "+b/6:1", "+a/7:1", "+a/8:1", "+a/9:1", "+a/10:1",
			"+c/11:1", "-a/1 → a/2", "-a/2 → b/6", "-b/6 → c/11", "-c/11 → a/3", "-a/3 → a/4", "-a/4 → a/5", "-a/5 → a/7", "-a/7 → a/8",
			"-a/8 → a/9", "-a/9", "wait:1h", "mem:60:0 → a/big", "-a/big → a/10",
		}},
		"a large one that leaves keeps nobody": {Limits{Wakes: 9, Queue: 99}, []string{
			"mem:50:50", "+a/big:60", "+a/1:0 → a/1", "+a/2:0 → a/2", "+a/3:0 → a/3", "+a/4:0 → a/4", "+a/5:0 → a/5", "+a/6:0 → a/6",
			"+a/7:0 → a/7", "+a/8:0 → a/8", "-a/1", "-a/2", "+a/9:0", "-a/big → a/9",
		}},
		"nobody knows the memory": {Limits{Wakes: 1, Queue: 9, Spare: 1 << 60}, []string{"+a/1:60 → a/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t, core: newCore(c.limits), now: epoch, tickets: map[string][]*ticket{}}
			for _, step := range c.steps {
				s.step(step)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	c := newCore(Limits{Wakes: 2, Queue: 4})
	if got := c.after(); got != time.Second {
		t.Errorf("with nothing known: %v", got)
	}
	c.state(epoch, keyOf("a/x"), "waking", 0)
	c.state(epoch.Add(3*time.Second), keyOf("a/x"), "awake", 0)
	for i := range 7 {
		c.enter(epoch, node.Key{Namespace: "a", ID: fmt.Sprint(i)}, 0)
	}
	if got := c.after(); got != 9*time.Second {
		t.Errorf("behind two rounds of 3 s: %v", got)
	}
	c.took = time.Hour
	if got := c.after(); got != time.Minute {
		t.Errorf("bound: %v", got)
	}
}

func TestParseAvailable(t *testing.T) {
	got, err := parseAvailable([]byte("MemTotal:  24684000 kB\nMemFree:  1 kB\nMemAvailable:   12345 kB\n"))
	if got != 12345<<10 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "MemFree: 1 kB\n", "MemAvailable: x kB\n", "MemAvailable: 1\n"} {
		if got, err := parseAvailable([]byte(bad)); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
	if got, err := Available(); got == 0 || err != nil {
		t.Errorf("this node: %d, %v", got, err)
	}
}

// ids of tickets, for messages.
func ids(all []*ticket) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.key.String())
	}
	slices.Sort(out)
	return out
}

package keepalive

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var (
	own4, peer4 = netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:40000")
	own6, peer6 = netip.MustParseAddrPort("[fd00::2]:80"), netip.MustParseAddrPort("[fd00::3]:40000")
	began       = time.Unix(1000, 0)
)

// learned is a state with numbers near their end, so that they wrap.
func learned(stamped bool) State {
	s := State{Next: 0xffffffff, Expected: 0, Window: 512}
	if stamped {
		s.Stamped, s.Value, s.Recent = true, 7000, 0xfffffff0
	}
	return s
}

func probe(own, peer netip.AddrPort, st State) Segment {
	seq, ack := st.Probe()
	return Segment{
		From: peer, To: own, Seq: seq, Ack: ack, Flags: ACK, Window: 1000,
		Stamped: st.Stamped, Value: st.Recent, Echo: st.Value,
	}
}

// families runs fn for both, with timestamps and without.
func families(t *testing.T, fn func(t *testing.T, own, peer netip.AddrPort, st State)) {
	for _, stamped := range []bool{false, true} {
		for _, f := range []struct{ own, peer netip.AddrPort }{{own4, peer4}, {own6, peer6}} {
			t.Run(fmt.Sprintf("%s stamped=%v", f.own, stamped), func(t *testing.T) { fn(t, f.own, f.peer, learned(stamped)) })
		}
	}
}

func tableOf(own, peer netip.AddrPort, st State) *Table {
	table := &Table{}
	table.Add(Flow{Own: own, Peer: peer}, st)
	return table
}

func TestProbesAreAnswered(t *testing.T) {
	families(t, func(t *testing.T, own, peer netip.AddrPort, st State) {
		for _, length := range []int{0, 1} {
			p := probe(own, peer, st)
			p.Length = length
			if st.Stamped {
				p.Value += 100 // wraps
			}
			table := tableOf(own, peer, st)
			got, answer := table.Judge(reread(t, p), began)
			want := Segment{From: own, To: peer, Seq: 0xffffffff, Ack: 0, Flags: ACK, Window: 512}
			if st.Stamped {
				want.Stamped, want.Value, want.Echo = true, 7000, 0x54
			}
			if got != Answer || answer != want {
				t.Fatalf("%d bytes: verdict %d, %+v, want %+v", length, got, answer, want)
			}
			if again := reread(t, answer); again != want {
				t.Fatalf("on the wire %+v, want %+v", again, want)
			}
		}
	})
}

// reread writes a segment as a packet and parses that.
func reread(t *testing.T, s Segment) Segment {
	t.Helper()
	again, ok := Parse(s.Packet())
	if !ok {
		t.Fatalf("not a segment: % x", s.Packet())
	}
	return again
}

func TestAllElsePasses(t *testing.T) {
	const fin, psh, urg, ece, cwr, ae, reserved = 1, 1 << 3, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9
	cases := map[string]func(*Segment){
		"window update":                       func(s *Segment) { s.Seq++ },
		"one byte of data, zero-window probe": func(s *Segment) { s.Seq++; s.Length = 1 },
		"two bytes":                           func(s *Segment) { s.Length = 2 },
		"duplicate":                           func(s *Segment) { s.Seq -= 3; s.Length = 4 },
		"old probe":                           func(s *Segment) { s.Seq-- },
		"acknowledges less":                   func(s *Segment) { s.Ack-- },
		"acknowledges more":                   func(s *Segment) { s.Ack++ },
		"no ACK":                              func(s *Segment) { s.Flags = 0 },
		"FIN":                                 func(s *Segment) { s.Flags |= fin },
		"SYN":                                 func(s *Segment) { s.Flags |= SYN },
		"RST":                                 func(s *Segment) { s.Flags |= RST },
		"PSH":                                 func(s *Segment) { s.Flags |= psh },
		"URG":                                 func(s *Segment) { s.Flags |= urg },
		"ECE":                                 func(s *Segment) { s.Flags |= ece },
		"CWR":                                 func(s *Segment) { s.Flags |= cwr },
		"AE":                                  func(s *Segment) { s.Flags |= ae },
		"reserved":                            func(s *Segment) { s.Flags |= reserved },
		"timestamps there or not":             func(s *Segment) { s.Stamped = !s.Stamped },
		"other options":                       func(s *Segment) { s.Others = true },
		"another port":                        func(s *Segment) { s.From = netip.AddrPortFrom(s.From.Addr(), 1) },
		"to another port":                     func(s *Segment) { s.To = netip.AddrPortFrom(s.To.Addr(), 1) },
		"the way back":                        func(s *Segment) { s.From, s.To = s.To, s.From },
	}
	families(t, func(t *testing.T, own, peer netip.AddrPort, st State) {
		table := tableOf(own, peer, st)
		for name, change := range cases {
			s := probe(own, peer, st)
			change(&s)
			if got, answer := table.Judge(s, began); got != Pass || answer != (Segment{}) {
				t.Errorf("%s: verdict %d, %+v", name, got, answer)
			}
		}
		if got, _ := table.Judge(probe(own, peer, st), began); got != Answer {
			t.Errorf("the probe itself after all that: verdict %d", got)
		}
	})
	if got, _ := new(Table).Judge(probe(own4, peer4, learned(false)), began); got != Pass {
		t.Error("an empty table answers")
	}
}

// What is echoed moves on with the probes, and not back with one that was overtaken.
func TestTimestampsMoveOn(t *testing.T) {
	st := learned(true)
	table := tableOf(own4, peer4, st)
	p := probe(own4, peer4, st)
	for i := range 4 {
		p.Value += 1 << 30 // around once
		got, answer := table.Judge(p, began.Add(time.Duration(i)*Pause))
		if got != Answer || answer.Echo != p.Value || answer.Value != st.Value {
			t.Fatalf("verdict %d, %+v", got, answer)
		}
	}
	newest := p.Value
	p.Value--
	if got, answer := table.Judge(p, began.Add(time.Hour)); got != Answer || answer.Echo != newest || answer.Value != st.Value {
		t.Fatalf("of before: verdict %d, %+v", got, answer)
	}
}

func TestAnswersAreLimited(t *testing.T) {
	st := learned(false)
	table := tableOf(own4, peer4, st)
	other := netip.AddrPortFrom(peer4.Addr(), 2)
	table.Add(Flow{Own: own4, Peer: other}, st)
	for _, one := range []struct {
		peer  netip.AddrPort
		after time.Duration
		want  Verdict
	}{
		{peer4, 0, Answer}, {peer4, 1, Silent}, {other, 1, Answer}, {peer4, Pause - 1, Silent}, {peer4, Pause, Answer}, {peer4, Pause + 1, Silent},
	} {
		if got, _ := table.Judge(probe(own4, one.peer, st), began.Add(one.after)); got != one.want {
			t.Errorf("after %v: verdict %d, want %d", one.after, got, one.want)
		}
	}
}

func TestLearn(t *testing.T) {
	answer := Segment{From: own4, To: peer4, Seq: 5, Ack: 6, Flags: ACK, Window: 7, Stamped: true, Value: 8, Echo: 9}
	got, ok := Learn(answer)
	if want := (State{Next: 5, Expected: 6, Window: 7, Stamped: true, Value: 8, Recent: 9}); !ok || got != want {
		t.Fatalf("%+v, %v", got, ok)
	}
	for name, change := range map[string]func(*Segment){
		"data":          func(s *Segment) { s.Length = 1 },
		"reset":         func(s *Segment) { s.Flags |= RST },
		"no ACK":        func(s *Segment) { s.Flags = 0 },
		"opening":       func(s *Segment) { s.Flags |= SYN },
		"gaps":          func(s *Segment) { s.Others = true },
		"closed window": func(s *Segment) { s.Window = 0 },
	} {
		s := answer
		change(&s)
		if _, ok := Learn(s); ok {
			t.Errorf("learned from one with %s", name)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	families(t, func(t *testing.T, own, peer netip.AddrPort, st State) {
		whole := probe(own, peer, st).Packet()
		ip, v4 := header6, peer.Addr().Is4()
		if v4 {
			ip = header4
		}
		for n := range whole {
			if _, ok := Parse(whole[:n]); ok {
				t.Fatalf("a packet cut at %d of %d", n, len(whole))
			}
		}
		for i := range whole { // every byte is covered by a checksum, or means something
			p := append([]byte(nil), whole...)
			p[i] ^= 0x5a
			if s, ok := Parse(p); ok && (v4 || i >= header6 || s != probe(own, peer, st)) {
				t.Errorf("byte %d changed: %+v", i, s)
			}
		}
		if s, ok := Parse(append(append([]byte(nil), whole...), 1, 2, 3)); !ok || s.Length != 0 {
			t.Error("the wire's padding was taken for data")
		}
		p := append([]byte(nil), whole...)
		binary.BigEndian.PutUint16(p[ip+checksumTCP:], ^finish(pseudo(peer.Addr(), own.Addr(), len(p)-ip)))
		if _, ok := Parse(p); !ok {
			t.Error("a checksum that the kernel left to the hardware was refused")
		}
		if Complete(p); string(p) != string(whole) {
			t.Error("a checksum was completed wrongly")
		}
	})
	fragment := probe(own4, peer4, learned(false)).Packet()
	fragment[6] = 0x20
	fragment[10], fragment[11] = 0, 0
	binary.BigEndian.PutUint16(fragment[10:], finish(sum(0, fragment[:header4])))
	if _, ok := Parse(fragment); ok {
		t.Error("a fragment was taken for a segment")
	}
}

func TestOptions(t *testing.T) {
	stamps := []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	for _, one := range []struct {
		name    string
		options []byte
		want    Segment
		ok      bool
	}{
		{"none", nil, Segment{}, true},
		{"padding", []byte{1, 1, 0, 99}, Segment{}, true},
		{"timestamps last", append([]byte{1, 1}, stamps...), Segment{Stamped: true, Value: 1, Echo: 2}, true},
		{"timestamps first", append(stamps, 1, 1), Segment{Stamped: true, Value: 1, Echo: 2}, true},
		{"twice", append(append([]byte{}, stamps...), stamps...), Segment{Stamped: true, Value: 1, Echo: 2, Others: true}, true},
		{"MD5", append([]byte{19, 18}, make([]byte, 16)...), Segment{Others: true}, true},
		{"timestamps too short", []byte{8, 4, 0, 0}, Segment{Others: true}, true},
		{"too long", []byte{1, 1, 5, 3}, Segment{}, false},
		{"no length", []byte{1, 1, 1, 5}, Segment{}, false},
		{"length of nothing", []byte{5, 0, 1, 1}, Segment{}, false},
		{"length of one", []byte{5, 1, 1, 1}, Segment{}, false},
	} {
		var s Segment
		if ok := s.parseOptions(one.options); ok != one.ok || ok && s != one.want {
			t.Errorf("%s: %+v, %v", one.name, s, ok)
		}
	}
}

// Whatever comes, nothing panics, and what is answered is a probe by its bytes, too.
func FuzzJudge(f *testing.F) {
	table := func() *Table {
		table := tableOf(own4, peer4, learned(true))
		table.Add(Flow{Own: own6, Peer: peer6}, learned(false))
		return table
	}
	table().All(func(flow Flow, st State) {
		p := probe(flow.Own, flow.Peer, st)
		f.Add(p.Packet())
		p.Length = 1
		f.Add(p.Packet())
		p.Flags |= SYN
		f.Add(p.Packet())
	})
	f.Add([]byte{})
	f.Add([]byte{0x45})
	f.Fuzz(func(t *testing.T, packet []byte) {
		packet = append([]byte(nil), packet...)
		Complete(packet) // else hardly any would get further
		if len(packet) >= header4 && packet[0]>>4 == 4 {
			packet[10], packet[11] = 0, 0
			binary.BigEndian.PutUint16(packet[10:], finish(sum(0, packet[:header4])))
			Complete(packet)
		}
		s, ok := Parse(packet)
		if !ok {
			return
		}
		verdict, answer := table().Judge(s, began)
		if verdict != Answer {
			return
		}
		st := learned(answer.Stamped)
		if answer.Seq != st.Next || answer.Ack != st.Expected || answer.Length != 0 || answer.Flags != ACK {
			t.Fatalf("answered %+v", answer)
		}
		tcp := packet[header6:]
		if packet[0]>>4 == 4 {
			tcp = packet[header4:]
		}
		if tcp[13] != 0x10 || binary.BigEndian.Uint32(tcp[4:]) != st.Expected-1 || binary.BigEndian.Uint32(tcp[8:]) != st.Next {
			t.Fatalf("answered % x", packet)
		}
	})
}

package network_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// both runs a test with packets of each family on either way.
func both(t *testing.T, do func(t *testing.T, w *world, l *network.Link, s *standIn, p plan, fast bool)) {
	for _, p := range []plan{four, six} {
		bothBy(t, p, func(t *testing.T, w *world, l *network.Link, s *standIn, fast bool) { do(t, w, l, s, p, fast) })
	}
}

// bothBy runs a test with packets of one family on either way.
func bothBy(t *testing.T, p plan, do func(t *testing.T, w *world, l *network.Link, s *standIn, fast bool)) {
	for name, slow := range map[string]bool{"past the stack": false, "through it": true} {
		t.Run(p.name+" "+name, func(t *testing.T) {
			w := newWorldOf(t, p)
			w.slow = slow
			w, l, s := awakeIn(t, w)
			if why := l.FastPath(); (why != "") != slow {
				t.Fatalf("the fast path: %q", why)
			}
			do(t, w, l, s, !slow)
		})
	}
}

// fast runs a test with packets of each family past the stack, in a pod that has both.
func fast(t *testing.T, do func(t *testing.T, w *world, l *network.Link, s *standIn, p plan)) {
	for _, p := range []plan{four, six} {
		t.Run(p.name, func(t *testing.T) {
			w, l, s := awakeIn(t, newWorldOf(t, four, six))
			if why := l.FastPath(); why != "" {
				t.Fatalf("the fast path: %q", why)
			}
			do(t, w, l, s, p)
		})
	}
}

func TestFastPathPassesPodsStack(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, p plan, fast bool) {
		c, err := w.dialBy(p, echoPort, answerTime)
		must(t, err)
		defer c.Close()
		u := w.datagrams(t, p)
		must(t, say(c, "hello", answerTime))
		before := forwarded(t, w)
		for range 50 {
			must(t, say(c, "hello", answerTime))
			must(t, say(u, "hello", answerTime))
		}
		// One a second asks for the way.
		if n := forwarded(t, w) - before; fast && n > 20 || !fast && n < 200 {
			t.Fatalf("P forwarded %d packets", n)
		}
	})
}

// forwarded is how many packets P's stack has forwarded so far, of both families.
func forwarded(t *testing.T, w *world) int {
	t.Helper()
	return inside(t, w.pod, func() (int, error) {
		n, err := snmp("Ip:", "ForwDatagrams")
		if err != nil {
			return 0, err
		}
		m, err := snmp6("Ip6OutForwDatagrams")
		return n + m, err
	})
}

// snmp6 is snmp for IPv6.
func snmp6(name string) (int, error) {
	text, err := os.ReadFile("/proc/thread-self/net/snmp6")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] == name {
			return strconv.Atoi(words[1])
		}
	}
	return 0, fmt.Errorf("no %s", name)
}

// snmp reads one of the kernel's counters for the thread's namespace.
func snmp(group, name string) (int, error) {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] != group {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		return strconv.Atoi(words[slices.Index(names, name)])
	}
	return 0, fmt.Errorf("no %s %s", group, name)
}

// What is use and what isn't, is the same on both ways, in both directions.
func TestUseIsTheSameOnBothWays(t *testing.T) {
	t.Parallel()
	const fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
	type kind struct {
		name   string
		packet []byte
		use    bool
	}
	kinds := func(p plan) []kind {
		segment, datagram := p.segment, p.datagram
		return []kind{
			{"SYN", segment(syn, 0, 0), true},
			{"SYN with options", segment(syn, 20, 0), true},
			{"SYN and ACK", segment(syn|ack, 20, 0), true},
			{"FIN", segment(fin|ack, 12, 0), true},
			{"RST", segment(rst, 0, 0), false},
			{"ACK", segment(ack, 0, 0), false},
			{"ACK with a timestamp", segment(ack, 12, 0), false},
			{"ACK with the most options", segment(ack, 40, 0), false},
			{"keep-alive with a byte", segment(ack, 12, 1), false},
			{"a byte that is pushed", segment(ack|psh, 12, 1), true},
			{"two bytes", segment(ack, 0, 2), true},
			{"two bytes behind options", segment(ack, 40, 2), true},
			{"many bytes", segment(ack, 12, 1000), true},
			{"datagram", datagram(9), true},
			{"empty datagram", datagram(0), true},
		}
	}
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, f plan, fast bool) {
		warm(t, w, f)
		want := settled(t, l)
		for _, way := range []struct {
			name                string
			from, to            string
			source, destination netip.Addr
		}{{"in", w.client, s.ns, f.client, f.pod}, {"out", s.ns, w.client, f.pod, f.client}} {
			for _, k := range kinds(f) {
				received(t, way.from, way.to, between(way.source, way.destination, k.packet))
				if k.use {
					want.Packets++
					want.Bytes += uint64(len(k.packet))
				}
				if now := settled(t, l); now != want {
					t.Errorf("%s, %s: %v, not %v", way.name, k.name, now, want)
					want = now
				}
			}
		}
	})
}

// segment has a checksum that nobody accepts: it is not answered.
func (p plan) segment(flags byte, options, payload int) []byte {
	b := p.packet(unix.IPPROTO_TCP, 20+options+payload)
	tcp := b[p.header():]
	tcp[12], tcp[13] = byte(5+options/4)<<4, flags
	return b
}

func (p plan) datagram(payload int) []byte {
	b := p.audible(payload)
	b[p.header()+6] = 1 // a wrong checksum
	return b
}

// audible is a datagram without a checksum: who listens hears it. For IPv6 between makes one.
func (p plan) audible(payload int) []byte {
	b := p.packet(unix.IPPROTO_UDP, 8+payload)
	b[p.header()+5] = byte(8 + payload)
	return b
}

func (p plan) header() int {
	if p.pod.Is4() {
		return 20
	}
	return 40
}

// packet is to ports of nobody's.
func (p plan) packet(protocol byte, length int) []byte {
	b := make([]byte, p.header()+length)
	if p.pod.Is4() {
		b[0], b[8], b[9] = 0x45, 64, protocol
	} else {
		b[0], b[6], b[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(b[4:], uint16(length))
	}
	b[p.header()], b[p.header()+2] = 0x90, 0x91
	return b
}

// between is the packet with these addresses.
func between(from, to netip.Addr, packet []byte) []byte {
	p := slices.Clone(packet)
	if from.Is4() {
		copy(p[12:], from.AsSlice())
		copy(p[16:], to.AsSlice())
		return p
	}
	copy(p[8:], from.AsSlice())
	copy(p[24:], to.AsSlice())
	if udp := p[40:]; p[6] == unix.IPPROTO_UDP && udp[6]|udp[7] == 0 {
		pseudo := binary.BigEndian.AppendUint32(slices.Clone(p[8:40]), uint32(len(udp)))
		binary.BigEndian.PutUint16(udp[6:], checksum(append(append(pseudo, 0, 0, 0, unix.IPPROTO_UDP), udp...)))
	}
	return p
}

// checksum is that of the internet.
func checksum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(slices.Clip(b), 0)
	}
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// framed is the packet as it is written to a packetSocket, with what the kernel does for a raw socket.
func framed(mac net.HardwareAddr, p []byte) []byte {
	kind := []byte{0x86, 0xdd}
	if p[0]>>4 == 4 {
		kind = []byte{8, 0}
	}
	return slices.Concat(make([]byte, 10), mac, []byte{2, 0, 0, 0, 0, 7}, kind, sealed(p)) // a header of no offloads first
}

// sealed has the length and the checksum of its header, of which IPv6's has none.
func sealed(p []byte) []byte {
	if p[0]>>4 == 4 {
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[10:], 0)
		binary.BigEndian.PutUint16(p[10:], checksum(p[:20]))
	}
	return p
}

// destination is that of a packet in a frame as a packetSocket has it; the zero value where it is none of the family.
func (p plan) destination(frame []byte) (a netip.Addr) {
	kind, at := uint16(unix.ETH_P_IP), 16
	if p.pod.Is6() {
		kind, at = unix.ETH_P_IPV6, 24
	}
	length := p.pod.BitLen() / 8
	if f := frame[10:]; len(f) >= 14+at+length && binary.BigEndian.Uint16(f[12:]) == kind {
		a, _ = netip.AddrFromSlice(f[14+at : 14+at+length])
	}
	return a
}

// received sends a packet of ours and returns when it has passed.
func received(t *testing.T, from, to string, p []byte) {
	t.Helper()
	h := handle(t, to)
	frames := func() uint64 { return get(t, h, "eth0").Attrs().Statistics.RxPackets }
	before := frames()
	sendRaw(t, from, p)
	eventually(t, "the packet arrives", func() bool { return frames() > before })
}

func sendRaw(t *testing.T, from string, p []byte) {
	t.Helper()
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(p[16:20])})
	if p[0]>>4 == 6 {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(p[24:40])}
	}
	inside(t, from, func() (any, error) {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return nil, unix.Sendto(fd, p, 0, to)
	})
}

// Fragments are P's to route: only the first has ports.
func TestFragmentsTakeThePodsWay(t *testing.T) {
	fast(t, func(t *testing.T, w *world, _ *network.Link, _ *standIn, p plan) {
		u := warm(t, w, p)
		before := forwarded(t, w)
		must(t, say(u, strings.Repeat("long ", 400), answerTime))
		if n := forwarded(t, w) - before; n != 4 {
			t.Fatalf("P forwarded %d of two fragments each way", n)
		}
	})
}

// warm makes the way to the client known.
func warm(t *testing.T, w *world, p plan) net.Conn {
	t.Helper()
	u := w.datagrams(t, p)
	must(t, say(u, "warm", answerTime))
	must(t, say(u, "warm", answerTime))
	return u
}

func TestSpoofedSourceIsDroppedOnBothWays(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, p plan, _ bool) {
		warm(t, w, p)
		ln := listenNobodys(t, w.client, p.client)
		sendRaw(t, s.ns, between(p.other(77), p.client, p.audible(1)))
		sendRaw(t, s.ns, between(p.pod, p.client, p.audible(2)))
		first(t, ln, 2)
	})
}

// other is an address of the network with another last byte.
func (p plan) other(last byte) netip.Addr {
	b := p.pod.AsSlice()
	b[len(b)-1] = last
	a, _ := netip.AddrFromSlice(b)
	return a
}

// listenNobodys takes the datagrams that these tests make.
func listenNobodys(t *testing.T, ns string, a netip.Addr) *net.UDPConn {
	t.Helper()
	ln := inside(t, ns, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp", &net.UDPAddr{IP: a.AsSlice(), Port: 0x9100})
	})
	t.Cleanup(func() { ln.Close() })
	return ln
}

// first expects a datagram of so many bytes before any other.
func first(t *testing.T, ln *net.UDPConn, length int) {
	t.Helper()
	must(t, ln.SetReadDeadline(time.Now().Add(5*time.Second)))
	if n, err := ln.Read(make([]byte, 100)); n != length {
		t.Fatalf("%d bytes came first, not %d: %v", n, length, err)
	}
}

// A gate that closes cuts both ways, known or not, and what it cuts is told.
func TestClosedGateCutsBothWays(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *world, l *network.Link, _ *standIn, p plan, _ bool) {
		u := warm(t, w, p)
		before := settled(t, l)
		must(t, l.SetGate(t.Context(), parked)) // still connected: it hears, and can't answer
		_, err := u.Write([]byte("x"))
		must(t, err)
		if got := settled(t, l).Packets - before.Packets; got != 2 {
			t.Errorf("a datagram and its answer, cut, count %d", got)
		}
		unsaid, err := l.Unsaid(t.Context())
		must(t, err)
		if unsaid.Packets != 1 {
			t.Errorf("the answer counts %d as unsaid", unsaid.Packets)
		}
	})
}

// Options are P's to read.
func TestOptionsTakeThePodsWay(t *testing.T) {
	fast(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, p plan) {
		warm(t, w, p)
		with := slices.Insert(p.datagram(0), 20, 1, 1, 1, 0) // three times nothing, and the end
		with[0] = 0x46
		if p.pod.Is6() {
			with = slices.Insert(p.datagram(0), 40, unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0) // for the destination: padding
			with[5], with[6] = 16, 60
		}
		for _, way := range []struct {
			from, to            string
			source, destination netip.Addr
		}{{w.client, s.ns, p.client, p.pod}, {s.ns, w.client, p.pod, p.client}} {
			before := forwarded(t, w)
			received(t, way.from, way.to, between(way.source, way.destination, with))
			eventually(t, "P forwards it", func() bool { return forwarded(t, w) == before+1 })
		}
	})
}

// What is of a link alone is not forwarded, by whatever way.
func TestAddressesOfTheLinkStayThere(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, p plan, _ bool) {
		if p.pod.Is4() {
			return // which knows no such rule: docs/NETWORK.md's routed pods have gateways of that kind
		}
		warm(t, w, p)
		ln := listenNobodys(t, s.ns, p.pod)
		mac := get(t, handle(t, w.pod), "eth0").Attrs().HardwareAddr
		wire := inside(t, w.client, func() (*os.File, error) { return packetSocket("eth0") })
		defer wire.Close()
		for payload, from := range []netip.Addr{addrOf("fe80::77"), addrOf("ff02::1"), addrOf("::1"), addrOf("::"), p.client} {
			_, err := wire.Write(framed(mac, between(from, p.pod, p.audible(payload))))
			must(t, err)
		}
		first(t, ln, 4)
	})
}

// Frames to another MAC, which a bridge floods, and those of a VLAN are not the sandbox's.
func TestFramesOfOthersAreNotTheSandboxs(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, p plan, _ bool) {
		before := settled(t, l)
		mac := get(t, handle(t, w.pod), "eth0").Attrs().HardwareAddr
		ln := listenNobodys(t, s.ns, p.pod)
		wire := inside(t, w.client, func() (*os.File, error) { return packetSocket("eth0") })
		defer wire.Close()
		send := func(payload int, mac net.HardwareAddr, tag ...byte) {
			frame := framed(mac, between(p.client, p.pod, p.audible(payload)))
			_, err := wire.Write(slices.Insert(frame, 22, tag...))
			must(t, err)
		}
		send(1, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		send(2, mac, 0x81, 0, 0, 5)
		send(3, mac)
		first(t, ln, 3)
		if n := settled(t, l).Packets - before.Packets; n != 1 {
			t.Errorf("%d frames count", n)
		}
	})
}

// An address that P got later is P's.
func TestOtherAddressesStayThePods(t *testing.T) {
	fast(t, func(t *testing.T, w *world, _ *network.Link, _ *standIn, p plan) {
		later := p
		later.pod = p.other(9)
		h := handle(t, w.pod)
		addAddr(t, h, "eth0", later.pod, p.bits)
		eventually(t, "the address is in use", func() bool { return inUse(t, h, later.pod) })
		ln := inside(t, w.pod, func() (net.Listener, error) { return net.Listen(p.tcp(), later.at(echoPort)) })
		defer ln.Close()
		go echoTCP(ln)
		c, err := w.dialBy(later, echoPort, answerTime)
		must(t, err)
		defer c.Close()
		must(t, say(c, "to the pod itself", answerTime))
	})
}

// The sandbox takes its frames before I's kernel would look at them.
func TestInnerKernelSeesNothing(t *testing.T) {
	fast(t, func(t *testing.T, w *world, _ *network.Link, _ *standIn, p plan) {
		seen := func() int {
			return inside(t, w.inner, func() (int, error) {
				if p.pod.Is6() {
					return snmp6("Ip6InReceives")
				}
				return snmp("Ip:", "InReceives")
			})
		}
		before := seen()
		c, err := w.dialBy(p, echoPort, answerTime)
		must(t, err)
		defer c.Close()
		must(t, say(c, "hello", answerTime))
		if n := seen() - before; n != 0 {
			t.Fatalf("I's kernel saw %d packets", n)
		}
	})
}

// What is longer than the pod's interface takes now, P doesn't forward, and so nor does the fast path.
func TestInterfacesOwnMTU(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, p plan, _ bool) {
		h := handle(t, w.pod)
		must(t, h.LinkSetMTU(get(t, h, "eth0"), 1400))
		ln := inside(t, w.client, func() (*net.UDPConn, error) { return net.ListenUDP(p.udp(), &net.UDPAddr{Port: 9}) })
		defer ln.Close()
		u := inside(t, s.ns, func() (net.Conn, error) { return net.Dial(p.udp(), netip.AddrPortFrom(p.client, 9).String()) })
		defer u.Close()
		whateverItIsTold(t, u.(*net.UDPConn), p)
		most := 1400 - p.header() - 8
		must(t, ln.SetReadDeadline(time.Now().Add(time.Second)))
		for _, length := range []int{most, most + 1, 1300, most + 28, 100} {
			_, err := u.Write(make([]byte, length))
			for errors.Is(err, unix.EMSGSIZE) { // of one before
				_, err = u.Write(make([]byte, length))
			}
			must(t, err)
			if length > most {
				continue
			}
			if n, err := ln.Read(make([]byte, 2000)); n != length {
				t.Fatalf("%d bytes came, not %d: %v", n, length, err)
			}
		}
	})
}

// whateverItIsTold has a socket send packets as long as its own interface takes them.
func whateverItIsTold(t *testing.T, u *net.UDPConn, p plan) {
	t.Helper()
	if p.pod.Is4() {
		setOptions(t, u, map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE})
		return
	}
	raw, err := u.SyscallConn()
	must(t, err)
	var failed error
	must(t, raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}))
	must(t, failed)
}

// With the process that made it, the fast path goes, and what it carried goes on.
func TestConnectionOutlivesTheFastPath(t *testing.T) {
	w, l, _ := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "fast", answerTime))
	must(t, l.Close())
	if n := programs(t, w.pod, "eth0") + programs(t, w.pod, "hib0") + programs(t, w.inner, "eth0"); n != 0 {
		t.Fatalf("%d programs are left", n)
	}
	must(t, say(c, "slow", answerTime))
	again := w.open(t)
	if why := again.FastPath(); why != "" {
		t.Fatalf("adopted without a fast path: %s", why)
	}
	before := forwarded(t, w)
	for range 20 {
		must(t, say(c, "fast again", answerTime))
	}
	if n := forwarded(t, w) - before; n > 10 {
		t.Fatalf("P forwarded %d packets", n)
	}
}

func TestRemoveTakesTheProgramsAway(t *testing.T) {
	w, l, _ := awake(t)
	if n := programs(t, w.pod, "eth0"); n != 1 {
		t.Fatalf("%d programs at eth0", n)
	}
	must(t, l.Remove(t.Context()))
	if n := programs(t, w.pod, "eth0"); n != 0 {
		t.Fatalf("%d programs are left", n)
	}
}

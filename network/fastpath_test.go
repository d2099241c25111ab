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

// both runs a test with packets on either way.
func both(t *testing.T, do func(t *testing.T, w *world, l *network.Link, s *standIn, fast bool)) {
	for name, slow := range map[string]bool{"past the stack": false, "through it": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.slow = slow
			w, l, s := awakeIn(t, w)
			if why := l.FastPath(); (why != "") != slow {
				t.Fatalf("the fast path: %q", why)
			}
			do(t, w, l, s, !slow)
		})
	}
}

func TestFastPathPassesPodsStack(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, fast bool) {
		c, err := w.dial(echoPort, answerTime)
		must(t, err)
		defer c.Close()
		u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
		defer u.Close()
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

// forwarded is how many packets P's stack has forwarded so far.
func forwarded(t *testing.T, w *world) int {
	t.Helper()
	return inside(t, w.pod, func() (int, error) { return snmp("Ip:", "ForwDatagrams") })
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
	const fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
	kinds := []struct {
		name   string
		packet []byte
		use    bool
	}{
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
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, fast bool) {
		warm(t, w)
		want := settled(t, l)
		for _, way := range []struct {
			name                string
			from, to            string
			source, destination net.IP
		}{{"in", w.client, s.ns, clientAddr.AsSlice(), podAddr.AsSlice()}, {"out", s.ns, w.client, podAddr.AsSlice(), clientAddr.AsSlice()}} {
			for _, k := range kinds {
				p := slices.Clone(k.packet)
				copy(p[12:], way.source)
				copy(p[16:], way.destination)
				received(t, way.from, way.to, p)
				if k.use {
					want.Packets++
					want.Bytes += uint64(len(p))
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
func segment(flags byte, options, payload int) []byte {
	b := packet(unix.IPPROTO_TCP, 20+options+payload)
	b[32], b[33] = byte(5+options/4)<<4, flags
	return b
}

func datagram(payload int) []byte {
	b := packet(unix.IPPROTO_UDP, 8+payload)
	b[25], b[26] = byte(8+payload), 1
	return b
}

// audible is a datagram without a checksum: who listens hears it.
func audible(payload int) []byte {
	b := datagram(payload)
	b[26] = 0
	return b
}

func packet(protocol byte, length int) []byte {
	b := make([]byte, 20+length)
	b[0], b[8], b[9] = 0x45, 64, protocol
	b[20], b[22] = 0x90, 0x91 // ports of nobody's
	return b
}

// seal fills in what the kernel does for a raw socket: length and checksum.
func seal(p []byte) {
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum&0xffff))
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
	inside(t, from, func() (any, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return nil, unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: [4]byte(p[16:20])})
	})
}

// Fragments are P's to route: only the first has ports.
func TestFragmentsTakeThePodsWay(t *testing.T) {
	w, _, _ := awake(t)
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	before := forwarded(t, w)
	must(t, say(u, strings.Repeat("long ", 400), answerTime))
	if n := forwarded(t, w) - before; n != 4 {
		t.Fatalf("P forwarded %d of two fragments each way", n)
	}
}

// warm makes the way to the client known.
func warm(t *testing.T, w *world) net.Conn {
	t.Helper()
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	t.Cleanup(func() { u.Close() })
	must(t, say(u, "warm", answerTime))
	must(t, say(u, "warm", answerTime))
	return u
}

func TestSpoofedSourceIsDroppedOnBothWays(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, _ bool) {
		warm(t, w)
		ln := listenNobodys(t, w.client, clientAddr)
		spoofed, honest := audible(1), audible(2)
		for source, p := range map[netip.Addr][]byte{addrOf("10.99.0.77"): spoofed, podAddr: honest} {
			copy(p[12:], source.AsSlice())
			copy(p[16:], clientAddr.AsSlice())
		}
		sendRaw(t, s.ns, spoofed)
		sendRaw(t, s.ns, honest)
		first(t, ln, 2)
	})
}

// listenNobodys takes the datagrams that these tests make.
func listenNobodys(t *testing.T, ns string, a netip.Addr) *net.UDPConn {
	t.Helper()
	ln := inside(t, ns, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp4", &net.UDPAddr{IP: a.AsSlice(), Port: 0x9100})
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
	both(t, func(t *testing.T, w *world, l *network.Link, _ *standIn, _ bool) {
		u := warm(t, w)
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
	w, _, s := awake(t)
	p := append(packet(unix.IPPROTO_UDP, 8)[:20], 1, 1, 1, 0) // three times nothing, and the end
	p = append(p, datagram(0)[20:]...)
	p[0] = 0x46
	for from, to := range map[string]string{w.client: s.ns, s.ns: w.client} {
		copy(p[12:], clientAddr.AsSlice())
		copy(p[16:], podAddr.AsSlice())
		if from == s.ns {
			copy(p[12:], podAddr.AsSlice())
			copy(p[16:], clientAddr.AsSlice())
		}
		before := forwarded(t, w)
		received(t, from, to, p)
		eventually(t, "P forwards it", func() bool { return forwarded(t, w) == before+1 })
	}
}

// Frames to another MAC, which a bridge floods, and those of a VLAN are not the sandbox's.
func TestFramesOfOthersAreNotTheSandboxs(t *testing.T) {
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, _ bool) {
		before := settled(t, l)
		mac := get(t, handle(t, w.pod), "eth0").Attrs().HardwareAddr
		ln := listenNobodys(t, s.ns, podAddr)
		wire := inside(t, w.client, func() (*os.File, error) { return packetSocket("eth0") })
		defer wire.Close()
		send := func(payload int, mac net.HardwareAddr, kind ...byte) {
			p := audible(payload)
			copy(p[12:], clientAddr.AsSlice())
			copy(p[16:], podAddr.AsSlice())
			seal(p)
			frame := slices.Concat(make([]byte, 10), mac, []byte{2, 0, 0, 0, 0, 7}, kind, p) // a header of no offloads first
			_, err := wire.Write(frame)
			must(t, err)
		}
		send(1, net.HardwareAddr{2, 0, 0, 0, 0, 9}, 8, 0)
		send(2, mac, 0x81, 0, 0, 5, 8, 0)
		send(3, mac, 8, 0)
		first(t, ln, 3)
		if n := settled(t, l).Packets - before.Packets; n != 1 {
			t.Errorf("%d frames count", n)
		}
	})
}

// An address that P got later is P's.
func TestOtherAddressesStayThePods(t *testing.T) {
	w, _, _ := awake(t)
	addAddr(t, handle(t, w.pod), "eth0", addrOf("10.99.0.9"), 24)
	ln := inside(t, w.pod, func() (net.Listener, error) { return net.Listen("tcp4", "10.99.0.9:7000") })
	defer ln.Close()
	go echoTCP(ln)
	c := inside(t, w.client, func() (net.Conn, error) { return net.DialTimeout("tcp4", "10.99.0.9:7000", time.Second) })
	defer c.Close()
	must(t, say(c, "to the pod itself", answerTime))
}

// The sandbox takes its frames before I's kernel would look at them.
func TestInnerKernelSeesNothing(t *testing.T) {
	w, _, _ := awake(t)
	seen := func() int {
		return inside(t, w.inner, func() (int, error) { return snmp("Ip:", "InReceives") })
	}
	before := seen()
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	if n := seen() - before; n != 0 {
		t.Fatalf("I's kernel saw %d packets", n)
	}
}

// What is longer than the pod's interface takes now, P doesn't forward, and so nor does the fast path.
func TestInterfacesOwnMTU(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, _ bool) {
		h := handle(t, w.pod)
		must(t, h.LinkSetMTU(get(t, h, "eth0"), 1400))
		ln := inside(t, w.client, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{Port: 9}) })
		defer ln.Close()
		u := inside(t, s.ns, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.3:9") })
		defer u.Close()
		setOptions(t, u.(*net.UDPConn), map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE}) // whatever it is told
		must(t, ln.SetReadDeadline(time.Now().Add(time.Second)))
		for _, length := range []int{1372, 1373, 1300, 1450, 100} { // with headers of 28
			_, err := u.Write(make([]byte, length))
			for errors.Is(err, unix.EMSGSIZE) { // of one before
				_, err = u.Write(make([]byte, length))
			}
			must(t, err)
			if length > 1372 {
				continue
			}
			if n, err := ln.Read(make([]byte, 2000)); n != length {
				t.Fatalf("%d bytes came, not %d: %v", n, length, err)
			}
		}
	})
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

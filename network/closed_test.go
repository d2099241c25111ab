package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// callers are those whom a sandbox's answers must reach.
func (w *world) callers() map[string]string {
	return map[string]string{"another pod": w.client, "the host": w.node}
}

// questions are asked of the pod from a namespace; each answers in words.
var questions = []struct {
	name string
	ask  func(ns string) string
}{
	{"echo", ping},
	{"a SYN to a closed port", func(ns string) string {
		return verdict(tryInside(ns, func() (net.Conn, error) { return net.DialTimeout("tcp4", podPort(closedPort), answerTime) }))
	}},
	{"a datagram to a closed port", func(ns string) string { return verdict(datagramTo(ns, closedPort, "anybody there")) }},
}

// answerTime is for what does come. It comes at once, but for a machine that has much else to do.
const answerTime = 30 * time.Second

const pingReply = "echo reply"

func podPort(port uint16) string { return netip.AddrPortFrom(podAddr, port).String() }

func verdict(c net.Conn, err error) string {
	if err == nil {
		c.Close()
		return "connected"
	}
	if refused(err) {
		return "refused"
	}
	return err.Error()
}

// datagramTo sends one, and hears the answer.
func datagramTo(ns string, port uint16, line string) (net.Conn, error) {
	c, err := tryInside(ns, func() (net.Conn, error) { return net.Dial("udp4", podPort(port)) })
	if err != nil {
		return nil, err
	}
	if err := say(c, line, answerTime); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func ping(ns string) string {
	c, err := tryInside(ns, func() (net.Conn, error) { return net.Dial("ip4:icmp", podAddr.String()) })
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	request := []byte{8, 0, 0, 0, 0x42, 0x42, 0, 1}
	sum := ^uint16(0x0800 + 0x4242 + 1)
	request[2], request[3] = byte(sum>>8), byte(sum)
	if err := errors.Join(c.SetDeadline(time.Now().Add(answerTime)), func() error { _, err := c.Write(request); return err }()); err != nil {
		return err.Error()
	}
	for buf := make([]byte, 100); ; {
		n, _, err := c.(*net.IPConn).ReadFrom(buf) // without the IP header
		if err != nil {
			return err.Error()
		}
		if n >= 8 && buf[0] == 0 && buf[4] == 0x42 && buf[5] == 0x42 {
			return pingReply
		}
	}
}

// asked puts all questions from everywhere.
func asked(w *world) map[string]string {
	answers := map[string]string{}
	for from, ns := range w.callers() {
		for _, q := range questions {
			answers[q.name+" from "+from] = q.ask(ns)
		}
	}
	return answers
}

func gates(ports, datagrams []uint16) []network.Gate {
	return []network.Gate{
		{Position: network.GateHeld, Ports: ports, Datagrams: datagrams},
		{Position: network.GateParked, Ports: ports, Datagrams: datagrams},
	}
}

// inFragments is too long for a packet: all but the first have no port.
var inFragments = strings.Repeat("0123456789", 190)

// Who asks what a sleeper needn't answer itself is told the same as when it is awake, and it goes on sleeping.
func TestAsleepAnswersAsAwake(t *testing.T) {
	w, l, s := awake(t)
	want := asked(w)
	wants(t, want)
	for _, g := range gates([]uint16{echoPort}, []uint16{echoPort}) {
		asleep(t, l, s, g)
		sameAsAwake(t, l, w, g, want)
		misses := watch(t, l)
		got := make(chan string, 1)
		go func() { got <- verdict(datagramTo(w.client, echoPort, inFragments)) }()
		next(t, misses)
		woken(t, l, s)
		if answer := <-got; answer != "connected" {
			t.Errorf("%s: a datagram to a bound port: %s", g.Position, answer)
		}
	}
}

// wants looks that the sandbox answers as is expected of one.
func wants(t *testing.T, answers map[string]string) {
	t.Helper()
	for question, answer := range answers {
		if answer != pingReply && answer != "refused" {
			t.Errorf("awake: %s: %s", question, answer)
		}
	}
}

func sameAsAwake(t *testing.T, l *network.Link, w *world, g network.Gate, want map[string]string) {
	t.Helper()
	for question, answer := range asked(w) {
		if answer != want[question] {
			t.Errorf("%s: %s: %s, and awake %s", g.Position, question, answer, want[question])
		}
	}
	h := handle(t, w.pod)
	list, err := h.NeighList(get(t, h, "hib0").Attrs().Index, unix.AF_INET)
	must(t, err)
	if len(list) > 0 {
		t.Errorf("%s: a packet waits for the sandbox: %v", g.Position, list)
	}
}

// What isn't known isn't refused: the sandbox is to be asked.
func TestUnknownPortsWake(t *testing.T) {
	for _, c := range []struct {
		gate network.Gate
		send func(ns string)
	}{
		{parked, func(ns string) {
			if c, err := tryInside(ns, func() (net.Conn, error) { return net.DialTimeout("tcp4", podPort(closedPort), 250*time.Millisecond) }); err == nil {
				c.Close()
			}
		}},
		{parked, sendDatagram},
		{held(echoPort), sendDatagram},
	} {
		t.Run(fmt.Sprint(c.gate), func(t *testing.T) {
			w, l, s := awake(t)
			asleep(t, l, s, c.gate)
			defer s.thaw()
			misses := watch(t, l)
			c.send(w.client)
			next(t, misses)
		})
	}
}

func sendDatagram(ns string) {
	if c, err := tryInside(ns, func() (net.Conn, error) { return net.Dial("udp4", podPort(closedPort)) }); err == nil {
		c.Write([]byte("anybody there\n"))
		c.Close()
	}
}

// reset ends a connection by the one segment that nobody answers. Of a FIN that a busy sandbox has not acknowledged before
// it sleeps the peer says again that it is there, and that wakes.
func reset(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.(*net.TCPConn).SetLinger(0))
	must(t, c.Close())
}

// The same of a real sandbox. Its UDP echo is on another port.
func TestRunscAsleepAnswersAsAwake(t *testing.T) {
	t.Parallel()
	const udpPort = 7002
	w := newWorld(t)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	g := newGvisor(t, w.inner)
	g.start(t)
	must(t, l.Connect(t.Context()))
	reset(t, dialRetry(t, w))
	want := asked(w)
	t.Log(want)
	wants(t, want)
	misses := watch(t, l)
	for _, gate := range gates([]uint16{8080, echoPort, 7001}, []uint16{udpPort}) {
		must(t, l.Disconnect(t.Context()))
		must(t, l.Quiet(t.Context(), 20*time.Millisecond))
		must(t, l.SetGate(t.Context(), gate))
		image := g.save(t)
		drain(misses)
		sameAsAwake(t, l, w, gate, want)
		c := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", podPort(udpPort)) })
		defer c.Close()
		_, err := c.Write([]byte("sent asleep\n"))
		must(t, err)
		next(t, misses)
		must(t, l.PrepareInner(t.Context()))
		g.restore(t, image)
		must(t, l.SetGate(t.Context(), opened))
		must(t, l.Connect(t.Context()))
		must(t, c.SetDeadline(time.Now().Add(answerTime)))
		must(t, hear(c, "sent asleep"))
	}
}

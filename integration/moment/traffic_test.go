package moment

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const (
	httpPort  = "8080"
	greetPort = "7001"
	greeting  = "220 hello\n"
)

// Every kind of traffic wakes, or is answered in sleep.
func TestTraffic(t *testing.T) {
	w := manual(t, true)
	s := startServer(t, w)
	for name, test := range map[string]func(*testing.T, *server){
		"Datagram": datagramWakes, "ServerSpeaksFirst": serverSpeaksFirst, "HalfClose": halfClose, "Burst": burst,
		"ClosedPort": closedPort, "Ping": ping, "Callers": callers,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

// sleep puts the server to sleep, and returns its status then.
func (s *server) sleep(t *testing.T) *shimv1.StatusResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.world.Sleep(ctx, id); err != nil {
		t.Fatal(err)
	}
	return s.is(t, "asleep")
}

// is looks that the server is in a state.
func (s *server) is(t *testing.T, state string) *shimv1.StatusResponse {
	t.Helper()
	now, err := s.world.WaitState(t.Context(), id, state)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// wokenBy looks that there was one wake since before, and why.
func (s *server) wokenBy(t *testing.T, before *shimv1.StatusResponse, reason string) {
	t.Helper()
	now := s.is(t, "awake")
	last := now.GetLastWake()
	if last.GetOutcome() != "restored" || last.GetReason() != reason || now.GetWakes() != before.GetWakes()+1 {
		t.Errorf("%d wakes, want one; the last is %s by %s (%s), want it by %s", now.GetWakes()-before.GetWakes(),
			last.GetOutcome(), last.GetReason(), last.GetDetail(), reason)
	}
}

// stillSleeps looks that nothing has woken it.
func (s *server) stillSleeps(t *testing.T, before *shimv1.StatusResponse) {
	t.Helper()
	now, err := s.world.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if now.GetState() != "asleep" || now.GetWakes() != before.GetWakes() {
		t.Errorf("it is %s after %d wakes", now.GetState(), now.GetWakes()-before.GetWakes())
	}
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dial opens a connection to one of the server's ports.
func (s *server) dial(t *testing.T, from dialFunc, network, port string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	c, err := from(ctx, network, net.JoinHostPort(s.ip, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	return c
}

func datagramWakes(t *testing.T, s *server) {
	before := s.sleep(t)
	if err := s.datagram(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wokenBy(t, before, "packet")
}

func serverSpeaksFirst(t *testing.T, s *server) {
	before := s.sleep(t)
	c := s.dial(t, s.world.Dial, "tcp", greetPort)
	if got, err := bufio.NewReader(c).ReadString('\n'); got != greeting || err != nil {
		t.Fatalf("it says %q, %v", got, err)
	}
	s.wokenBy(t, before, "connection")
}

// halfClose: the client's end of stream arrives, in sleep too, and the answer comes after it.
func halfClose(t *testing.T, s *server) {
	finish := func(c net.Conn, line string) {
		t.Helper()
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != line || err != nil {
			t.Fatalf("after the half-close: %q, %v; want %q", got, err, line)
		}
	}
	old := s.dial(t, s.world.Dial, "tcp", echoPort)
	exchange(t, old, "awake")
	before := s.sleep(t)
	finish(old, "")
	s.wokenBy(t, before, "packet")

	before = s.sleep(t)
	fresh := s.dial(t, s.world.Dial, "tcp", echoPort)
	say(t, fresh, "without a line's end")
	finish(fresh, "without a line's end")
	s.wokenBy(t, before, "connection")
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func exchange(t *testing.T, c net.Conn, text string) {
	t.Helper()
	say(t, c, text+"\n")
	got := make([]byte, len(text)+1)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text+"\n" {
		t.Fatalf("the answer to %q is %q, %v", text, got, err)
	}
}

// burst: many come at the same moment, and each has its answer after one wake.
func burst(t *testing.T, s *server) {
	const clients = 100
	before := s.sleep(t)
	conns, errs := make([]net.Conn, clients), make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
			defer cancel()
			conns[i], errs[i] = s.world.Dial(ctx, "tcp", net.JoinHostPort(s.ip, echoPort))
			if errs[i] == nil {
				errs[i] = echoLine(conns[i], fmt.Sprintf("client %d\n", i))
			}
		})
	}
	all.Wait()
	for i, c := range conns {
		if errs[i] != nil {
			t.Errorf("client %d: %v", i, errs[i])
		}
		if c != nil {
			c.Close()
		}
	}
	s.wokenBy(t, before, "connection")
}

func echoLine(c net.Conn, line string) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, line); err != nil {
		return err
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && got != line {
		err = fmt.Errorf("the answer is %q", got)
	}
	return err
}

// closedPort: nobody listens there, and nobody has to be woken to say so.
func closedPort(t *testing.T, s *server) {
	before := s.sleep(t)
	if before.GetGate() != "held" {
		t.Fatalf("the gate is %s", before.GetGate())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, err := s.world.Dial(ctx, "tcp", net.JoinHostPort(s.ip, "9"))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to a closed port: %v", err)
	}
	if err == nil {
		c.Close()
	}
	s.stillSleeps(t, before)
}

func ping(t *testing.T, s *server) {
	before := s.sleep(t)
	c, err := s.world.Dial(t.Context(), "ip4:icmp", s.ip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	const request, reply = 8, 0
	question := icmp(request, "are you there?")
	if _, err := c.Write(question); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	n, _, err := c.(*net.IPConn).ReadFromIP(answer) // without the IP header, unlike Read
	if err != nil || answer[0] != reply || string(answer[8:n]) != string(question[8:]) {
		t.Errorf("ping: %x, %v", answer[:n], err)
	}
	s.stillSleeps(t, before)
}

// icmp is a message with its checksum.
func icmp(kind byte, data string) []byte {
	m := append([]byte{kind, 0, 0, 0, 0x68, 0x69, 0, 1}, data...)
	var sum uint32
	for i := 0; i < len(m); i += 2 {
		sum += uint32(m[i])<<8 | uint32(m[i+1])
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum+sum>>16))
	return m
}

// callers of all kinds wake the server by connections old and new, and it sees who they are.
func callers(t *testing.T, s *server) {
	pod, err := s.world.NewPod(t.Context(), "caller")
	if err != nil {
		t.Fatal(err)
	}
	defer s.world.RemovePod(context.Background(), pod)
	fromPod := func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.world.DialPod(ctx, pod.Path, network, address)
	}
	for _, c := range []struct {
		name, address string
		dial          dialFunc
	}{
		{"client", s.world.ClientIP(), s.world.Dial}, {"node", s.world.NodeIP(), s.world.DialNode}, {"pod", pod.IP, fromPod},
	} {
		t.Run(c.name, func(t *testing.T) { s.call(t, c.dial, c.address) })
	}
}

func (s *server) call(t *testing.T, from dialFunc, address string) {
	before := s.sleep(t)
	held := s.dial(t, from, "tcp", httpPort)
	sees(t, held, address)
	s.wokenBy(t, before, "connection")
	direct := s.dial(t, from, "tcp", httpPort)
	sees(t, direct, address)
	for kind, c := range map[string]net.Conn{"direct": direct, "held": held} {
		before = s.sleep(t)
		sees(t, c, address)
		s.wokenBy(t, before, "packet")
		t.Logf("%s: woken by its %s connection", address, kind)
	}
	held.Close()
	direct.Close()
}

// sees asks the server whom it sees.
func sees(t *testing.T, c net.Conn, want string) {
	t.Helper()
	say(t, c, "GET /remote HTTP/1.1\r\nHost: test\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(strings.TrimSpace(string(body)))
	if err != nil || host != want {
		t.Errorf("the server sees %s (%v), want %s", host, err, want)
	}
}

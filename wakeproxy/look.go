package wakeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lookAt is how much of a request is looked at; a probe is shorter.
const lookAt = 8 << 10

// StateHeader is the field of an answer to a probe that tells the state of the
// workload which did not answer itself.
const StateHeader = "Hibernate-State"

// Question is how a client has begun.
type Question struct {
	Client netip.AddrPort
	Port   uint16
	// Closed: it has closed without a word.
	Closed bool
	// Of an HTTP request; the path without a query. Empty when it is none.
	Method, Path, UserAgent string
	// Stream is that of an HTTP/2 request; 0 of others. Only gRPC's health protocol is shown.
	Stream uint32
}

// Health is what a workload that is away is said to be.
type Health struct {
	State string // one word, for the answer's header
	Well  bool
}

// Probes tells which connections only ask whether the workload is well.
type Probes interface {
	// Away returns the health of a workload that can't answer itself; ok is
	// false when it can.
	Away() (h Health, ok bool)
	// Probe says whether a question is a probe.
	Probe(q Question) bool
}

// ServeProbes is Serve for a listening socket whose clients may be probes: while
// the workload is away each connection is accepted at once and looked at, for
// Options.LookFor at most. A probe is answered without a wake; all else is
// held, and passed on as if nobody had looked. What was accepted is lost with
// this process, so only sources that send probes should come this way.
func (p *Proxy) ServeProbes(ctx context.Context, ln *os.File, port uint16, probes Probes) error {
	return p.run(ctx, ln, port, func(s *server) error { return s.looking(probes) })
}

func (s *server) looking(probes Probes) error {
	for {
		if err := s.listener.wait(s.accept); err != nil {
			return err
		}
		if err := s.admit.acquire(s.accept); err != nil {
			return err
		}
		fd, client, err := s.take()
		if err != nil {
			s.admit.release()
			if errors.Is(err, errEmpty) {
				continue
			}
			return err
		}
		s.conns.Go(func() { s.look(fd, client, probes) })
	}
}

// look answers a probe, or wakes the workload for the connection.
func (s *server) look(fd int, client netip.AddrPort, probes Probes) {
	var before []byte
	if health, away := probes.Away(); away {
		var done bool
		if done, before = s.answered(fd, client, probes, health); done {
			unix.Close(fd)
			s.active.Add(-1)
			s.admit.release()
			return
		}
	}
	s.observer.Held(s.listener.port)
	if err := s.wake(); err != nil {
		s.log.Warn("connection refused: the workload doesn't wake", "client", client, "error", err)
		s.refuseOne(fd, client, err)
		s.admit.release()
		return
	}
	s.serve(fd, client, before)
}

// answered leaves the connection as it was unless it is a probe, or returns what was taken from it. One that can't be passed on any
// more has ended.
func (s *server) answered(fd int, client netip.AddrPort, probes Probes, health Health) (done bool, before []byte) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return false, nil
	}
	f := os.NewFile(uintptr(own), "client")
	defer f.Close()
	q := Question{Client: client, Port: s.listener.meant(fd)}
	shown, second := peek(f, &q, s.lookFor)
	greeted := false
	if second {
		greeted, shown = askHTTP2(f, &q, s.lookFor)
	}
	switch {
	case shown && probes.Probe(q):
		switch {
		case q.Stream != 0:
			_ = tellGRPC(f, q, greeted, health)
		case !q.Closed:
			_ = tell(f, q.Method, health)
		}
		return true, nil
	case greeted:
		if before, err = withoutAck(f); err != nil {
			s.log.Warn("connection refused: it can't be passed on", "client", client, "error", err)
			_ = fileControl(f, lingerNot)
			return true, nil
		}
	}
	return false, before
}

// peek looks at what the client has sent, which stays where it is. It is not
// shown when that isn't told in time; second says that it has begun by HTTP/2.
func peek(f *os.File, q *Question, limit time.Duration) (shown, second bool) {
	raw, err := f.SyscallConn()
	if err != nil || f.SetReadDeadline(time.Now().Add(limit)) != nil {
		return false, false
	}
	buf := make([]byte, lookAt)
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return false
		case err != nil || n == 0:
			q.Closed, shown = true, true
			return true
		}
		head := buf[:n]
		if second = bytes.HasPrefix(head, preface); second || bytes.HasPrefix(preface, head) {
			return second
		}
		shown = q.Read(head)
		return shown || n == len(buf)
	})
	return err == nil && shown, second
}

// Read takes what a client has sent so far, from the beginning. It is false while that
// doesn't show yet what it asks, and true also when it is nothing that is known.
func (q *Question) Read(head []byte) (shown bool) {
	if len(head) == 0 {
		return false
	}
	if n := min(len(head), len(preface)); bytes.Equal(head[:n], preface[:n]) {
		b := readHTTP2(head)
		q.take(b)
		return b.over
	}
	if head[0] < 'A' || head[0] > 'Z' || bytes.IndexByte(head, '\n') >= 0 && !httpRequest.Match(head) { // no HTTP
		return true
	}
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end >= 0 {
		q.read(head[:end+2])
	}
	return end >= 0
}

// read takes an HTTP/1 request's head.
func (q *Question) read(head []byte) {
	line := httpRequest.Find(head)
	if line == nil {
		return
	}
	words := strings.Fields(string(line))
	q.Method = words[0]
	q.Path, _, _ = strings.Cut(words[1], "?")
	for field := range strings.SplitSeq(string(head[len(line):]), "\r\n") {
		if name, value, ok := strings.Cut(field, ":"); ok && strings.EqualFold(name, "User-Agent") {
			q.UserAgent = strings.TrimSpace(value)
		}
	}
}

// tell answers a probe.
func tell(f *os.File, method string, health Health) error {
	status := "200 OK"
	if !health.Well {
		status = "503 Service Unavailable"
	}
	body := health.State + "\n"
	head := fmt.Sprintf("HTTP/1.1 %s\r\nConnection: close\r\nCache-Control: no-store\r\n%s: %s\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n", status, StateHeader, health.State, len(body))
	if method == "HEAD" {
		body = ""
	}
	return say(f, head+body)
}

package network

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
)

// However one side ends its stream or the connection, the other sees just that, on a connection that was held and on one that
// lived through a sleep.
func TestEndsPassAsTheyCame(t *testing.T) {
	s := start(t, true, nil)
	for kind, open := range map[string]func(*server, string) (*net.TCPConn, *bufio.Reader){"held": openHeld, "through-sleep": openThroughSleep} {
		t.Run(kind, func(t *testing.T) {
			s := *s
			s.t = t
			s.endsOfServer(kind, open)
			s.endsOfClient(kind, open)
		})
	}
}

// openHeld is a connection that wakes the server, which was told how to behave.
func openHeld(s *server, command string) (*net.TCPConn, *bufio.Reader) {
	s.t.Helper()
	s.sleep()
	return s.greeted(command)
}

// openThroughSleep is a connection below which the server has fallen asleep, before it said how the server is to behave.
func openThroughSleep(s *server, command string) (*net.TCPConn, *bufio.Reader) {
	s.t.Helper()
	if _, err := s.world.Wake(s.ctx(), id); err != nil {
		s.t.Fatal(err)
	}
	c := s.dial(mannersPort).(*net.TCPConn)
	s.sleep()
	return c, s.greet(c, command)
}

func (s *server) greeted(command string) (*net.TCPConn, *bufio.Reader) {
	s.t.Helper()
	c := s.dial(mannersPort).(*net.TCPConn)
	return c, s.greet(c, command)
}

// greet says how the server is to behave.
func (s *server) greet(c net.Conn, command string) *bufio.Reader {
	s.t.Helper()
	in := bufio.NewReader(c)
	_, err := fmt.Fprintln(c, command)
	s.must(err)
	if line, err := lineOf(in); line != command {
		s.t.Fatalf("%q was answered by %q: %v", command, line, err)
	}
	return in
}

const lastWords = "last words"

func (s *server) endsOfServer(kind string, open func(*server, string) (*net.TCPConn, *bufio.Reader)) {
	for how, want := range map[string]error{"half": io.EOF, "close": io.EOF, "reset": syscall.ECONNRESET} {
		name := "server-" + how + "-" + kind
		c, in := open(s, how+" "+name)
		if _, err := in.ReadByte(); !errors.Is(err, want) {
			s.t.Errorf("the server's %s: the client sees %v, not %v", how, err, want)
		}
		if how == "half" { // the other half goes on
			_, err := io.WriteString(c, lastWords)
			s.must(errors.Join(err, c.CloseWrite()))
			if g := s.endOf(name); g.End != "eof" || g.Bytes != int64(len(lastWords)) {
				s.t.Errorf("after its own end the server has seen %+v", g)
			}
		}
		c.Close()
	}
}

func (s *server) endsOfClient(kind string, open func(*server, string) (*net.TCPConn, *bufio.Reader)) {
	for how, end := range map[string]func(*net.TCPConn) error{
		"eof":   (*net.TCPConn).CloseWrite,
		"reset": func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
	} {
		name := "client-" + how + "-" + kind
		c, _ := open(s, "listen "+name)
		_, err := io.WriteString(c, lastWords)
		s.must(err)
		// A reset discards what has not been read.
		eventually(s.t, "the last words arrive", func() bool { return s.guest(name).Bytes == int64(len(lastWords)) })
		s.sleep()
		s.must(end(c))
		if g := s.endOf(name); g.End != how || g.Bytes != int64(len(lastWords)) {
			s.t.Errorf("the client's %s: the server has seen %+v", how, g)
		}
		c.Close()
	}
}

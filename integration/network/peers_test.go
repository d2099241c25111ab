package network

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// A client whose upload stands still, since the program doesn't read, asks now and then whether the window is open again. That
// wakes the server, and when the program reads at last, all is there.
func TestClosedWindowIsProbed(t *testing.T) {
	for kind, open := range map[string]func(*server, string) net.Conn{
		"held":   func(s *server, command string) net.Conn { s.sleep(); c, _ := s.greeted(command); return c },
		"direct": func(s *server, command string) net.Conn { c, _ := s.greeted(command); return c },
	} {
		t.Run(kind, func(t *testing.T) {
			s := start(t, true, nil)
			c := open(s, "deaf "+kind)
			const size = 24 << 20 // more than fits between the two ends
			sum, uploaded := sha256.New(), make(chan error, 1)
			go func() {
				_, err := io.CopyN(io.MultiWriter(c, sum), rand.NewChaCha8([32]byte{3}), size)
				uploaded <- err
			}()
			s.standsStill(c)
			before := s.sleep()
			s.woken(before, "packet") // by a probe: nobody says anything
			s.get("/manners/read")
			s.must(<-uploaded)
			s.must(c.(*net.TCPConn).CloseWrite())
			if g, want := s.endOf(kind), fmt.Sprintf("%x", sum.Sum(nil)); g.End != "eof" || g.Bytes != size || g.SHA256 != want {
				t.Errorf("the server has %+v of %d bytes, %s", g, size, want)
			}
		})
	}
}

// standsStill waits until no more can be sent on a connection.
func (s *server) standsStill(c net.Conn) {
	s.t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	s.must(err)
	last, since := uint64(0), time.Now()
	eventually(s.t, "the upload stands still", func() bool {
		var acked uint64
		s.must(raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				acked = info.Bytes_acked
			}
		}))
		if acked != last {
			last, since = acked, time.Now()
		}
		return acked > 0 && time.Since(since) > time.Second
	})
}

// A client that says its first words with its SYN (TCP Fast Open, without a cookie) is heard once, asleep as awake, held and
// parked: nobody takes them for received who doesn't pass them on.
func TestFastOpen(t *testing.T) {
	for gate, daemon := range map[string]bool{"held": true, "parked": false} {
		t.Run(gate, func(t *testing.T) {
			s := start(t, daemon, nil)
			s.asClient(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("5"), 0) })
			s.fastOpen("awake")
			if before := s.sleep(); before.GetGate() != gate {
				t.Fatalf("the gate is %s", before.GetGate())
			}
			s.fastOpen("asleep")
			if n := s.firstWordsSent(); n < 2 {
				t.Errorf("%d of the SYNs had words in them: nothing is shown", n)
			}
		})
	}
}

// firstWordsSent is how many of the client's SYNs had words in them, whether or not they were taken.
func (s *server) firstWordsSent() (n int) {
	s.t.Helper()
	s.asClient(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		names, values := strings.Fields(string(text)), []string(nil)
		for i, name := range names {
			if name == "TcpExt:" && values == nil && i > 0 {
				values = names[i:]
			}
		}
		for i, name := range names[:min(len(names), len(values))] {
			if name == "TCPFastOpenActive" || name == "TCPFastOpenActiveFail" {
				count, err := strconv.Atoi(values[i])
				if err != nil {
					return err
				}
				n += count
			}
		}
		return nil
	})
	return n
}

func (s *server) fastOpen(name string) {
	s.t.Helper()
	line := "listen fast-" + name + "\n"
	var c net.Conn
	s.asClient(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "fast")
		defer f.Close()
		to := netip.MustParseAddrPort(s.address(mannersPort))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}); err != nil {
			return err
		}
		err = unix.Sendto(fd, []byte(line), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		if err != nil {
			return fmt.Errorf("connect with the first words: %w", err)
		}
		c, err = net.FileConn(f)
		return err
	})
	defer c.Close()
	s.must(c.SetDeadline(time.Now().Add(patience)))
	s.must(hear(c, line))
	_, err := io.WriteString(c, "and more")
	s.must(err)
	s.must(c.(*net.TCPConn).CloseWrite())
	if g := s.endOf("fast-" + name); g.End != "eof" || g.Bytes != int64(len("and more")) {
		s.t.Errorf("%s: after the first line the server has %+v", name, g)
	}
}

// asClient runs fn inside the client's network namespace.
func (s *server) asClient(fn func() error) {
	s.t.Helper()
	s.must(ns.WithNetNSPath(s.world.Path("/run/netns/client"), func(ns.NetNS) error { return fn() }))
}

package keepalive

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// ear hears TCP segments at the client's interface, both ways.
type ear struct {
	mu  sync.Mutex
	all []keepalive.Segment
}

func (s *server) listen(t *testing.T) *ear {
	t.Helper()
	var f *os.File
	s.asClient(t, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0x0300) // ETH_P_ALL
		f = os.NewFile(uintptr(fd), "ear")
		return err
	})
	e := &ear{}
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			if s, ok := keepalive.Parse(buf[:n]); ok {
				e.mu.Lock()
				e.all = append(e.all, s)
				e.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { f.Close(); done.Wait() })
	return e
}

// between are the segments from one to the other since a number of them.
func (e *ear) between(from, to netip.AddrPort, since int) (list []keepalive.Segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.all[since:] {
		if s.From == from && s.To == to {
			list = append(list, s)
		}
	}
	return list
}

func (e *ear) now() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// probe waits for a client's keep-alive probe that has been answered.
func (e *ear) probe(t *testing.T, client, server netip.AddrPort) keepalive.Segment {
	t.Helper()
	for until := time.Now().Add(answerTimeout); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		for _, out := range e.between(client, server, 0) {
			for _, in := range e.between(server, client, 0) {
				if out.Flags == keepalive.ACK && out.Length == 0 && in.Ack == out.Seq+1 {
					return out
				}
			}
		}
	}
	t.Fatal("the client doesn't ask, or isn't answered")
	return keepalive.Segment{}
}

func (s *server) inject(t *testing.T, packet []byte, to netip.Addr) {
	t.Helper()
	s.asClient(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
}

// received waits until the program has had so many bytes over a client's connection.
func (s *server) received(t *testing.T, client string, want int) {
	t.Helper()
	got := -1
	for until := time.Now().Add(answerTimeout); got != want && time.Now().Before(until); {
		got = s.count(t, client)
	}
	if got != want {
		t.Fatalf("the program has %d bytes, not %d", got, want)
	}
}

func (s *server) count(t *testing.T, client string) int {
	t.Helper()
	r, err := s.world.HTTP().Get("http://" + net.JoinHostPort(s.ip, "8080") + "/echo/total")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var total struct {
		Connections map[string]struct {
			Bytes int `json:"bytes"`
		} `json:"connections"`
	}
	if err := json.NewDecoder(r.Body).Decode(&total); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", r.Status, err)
	}
	return total.Connections[client].Bytes
}

// What is not exactly a keep-alive wakes, and nobody acknowledges it but the program's own stack; then the connection goes
// on. Each case changes a probe that the client's kernel has sent.
func TestAllElseWakes(t *testing.T) {
	s := start(t, true)
	heard := s.listen(t)
	for _, one := range []struct {
		name   string
		change func(*keepalive.Segment)
		bytes  int // that are new to the program
	}{
		{"one byte that isn't pushed", func(s *keepalive.Segment) { s.Seq++; s.Length = 1 }, 1},
		{"window update", func(s *keepalive.Segment) { s.Seq++ }, 0},
		{"duplicate", func(s *keepalive.Segment) { s.Seq -= 2; s.Length = 3 }, 0},
		{"urgent", func(s *keepalive.Segment) { s.Flags |= 1 << 5 }, 0},
		{"pushed", func(s *keepalive.Segment) { s.Flags |= 1 << 3 }, 0},
		{"old acknowledgement", func(s *keepalive.Segment) { s.Ack-- }, 0},
		{"without its timestamps", func(s *keepalive.Segment) { s.Stamped = false }, 0},
	} {
		t.Run(one.name, func(t *testing.T) {
			c := s.dial(t)
			c.say(t, "hello")
			own := netip.MustParseAddrPort(c.RemoteAddr().String())
			probe := heard.probe(t, c.address(), own)
			wakes := s.sleep(t)
			since := heard.now()
			s.inject(t, probe.Packet(), own.Addr())
			time.Sleep(200 * time.Millisecond) // nothing happens
			s.sleeps(t, wakes)
			for _, a := range heard.between(own, c.address(), since) {
				if a.Ack != probe.Seq+1 || a.Seq != probe.Ack || a.Length != 0 || a.Stamped != probe.Stamped {
					t.Errorf("%+v answered %+v", a, probe)
				}
			}
			changed := probe
			one.change(&changed)
			since = heard.now()
			s.inject(t, changed.Packet(), own.Addr())
			s.woken(t, wakes)
			if one.bytes > 0 { // the program counts what isn't a line at the end
				end := changed
				end.Seq, end.Length, end.Flags = changed.Seq+uint32(one.bytes), 0, changed.Flags|1
				s.inject(t, end.Packet(), own.Addr())
			}
			s.received(t, c.LocalAddr().String(), len("hello\n")+one.bytes)
			for _, a := range heard.between(own, c.address(), since) {
				if got := int32(a.Ack - probe.Seq - 1); got > int32(2*one.bytes) { // the end counts as one
					t.Errorf("acknowledged %d bytes, of %d", got, one.bytes)
				}
			}
			if one.bytes == 0 {
				c.say(t, "goes on")
			} else if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil { // its kernel doesn't know of what it said, and would say FIN again and again
				t.Fatal(err)
			}
		})
	}
}

// Package fork tests workloads that are made of what another is: they go on from there, each by itself, and the forked one notices
// nothing.
package fork

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// limit bounds one command.
const limit = 40 * time.Second

const mib = 24

type world struct {
	*harness.World
	t *testing.T
}

func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	all := map[string]string{"mode": `"manual"`, "min-awake": `"0s"`}
	for k, v := range settings {
		all[k] = v
	}
	w := &world{harness.New(t, harness.Options{Daemon: true, Settings: all}), t}
	t.Cleanup(w.forget)
	return w
}

// forget removes the forks that no container has become, which sleep on when all containers are gone.
func (w *world) forget() {
	w.must(w.RemoveAll(w.context()))
	left, err := filepath.Glob(w.Path(filepath.Join(w.DataDir(), w.Name, "*")))
	w.must(err)
	for _, dir := range left {
		w.must(os.RemoveAll(dir))
	}
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) server(id string) *known.Server {
	w.t.Helper()
	pod, err := w.NewPod(w.context(), id)
	w.must(err)
	w.t.Cleanup(func() { w.must(w.RemovePod(w.context(), pod)) })
	return known.New(w.t, w.World, id, pod)
}

func (w *world) parent() *known.Server {
	w.t.Helper()
	s := w.server("web")
	w.t.Cleanup(s.HangUp)
	s.Start(harness.Container{Flags: []string{"--null-io"}}, mib)
	return s
}

// become starts a container that is the workload of an identity.
func (w *world) become(identity string, parent *known.Server) *known.Server {
	w.t.Helper()
	s := w.server("c-" + identity)
	w.t.Cleanup(s.HangUp)
	s.StartAs(harness.Container{Annotations: map[string]string{"identity": identity}}, mib, parent)
	return s
}

// fork runs hibernatectl, and returns what it has made.
func (w *world) fork(args ...string) []string {
	w.t.Helper()
	out, err := w.Output(w.context(), "hibernatectl", append([]string{"--config", w.ConfigFile(), "fork"}, args...)...)
	w.must(err)
	return strings.Fields(out)
}

func (w *world) refused(want string, args ...string) {
	w.t.Helper()
	_, err := w.Output(w.context(), "hibernatectl", append([]string{"--config", w.ConfigFile(), "fork"}, args...)...)
	if err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("fork %v: %v; want %q", args, err, want)
	}
}

// A line is a connection that stays, by which requests are made.
type line struct {
	net.Conn
	in *bufio.Reader
}

func (w *world) dial(s *known.Server) *line {
	w.t.Helper()
	c, err := w.Dial(w.context(), "tcp", s.Address(8080))
	w.must(err)
	w.t.Cleanup(func() { c.Close() })
	l := &line{c, bufio.NewReader(c)}
	w.must(l.ask())
	return l
}

func (l *line) ask() error {
	if err := l.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(l, "GET /pid HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = bufio.NewReader(answer.Body).ReadString('\n')
	return err
}

// wire counts the packets of a pod's own that belong to a connection of that client.
type wire struct {
	mu sync.Mutex
	n  int
}

func (w *world) listen(pod harness.Pod, client netip.AddrPort) *wire {
	w.t.Helper()
	var file *os.File
	w.must(ns.WithNetNSPath(w.Path(pod.Path), func(ns.NetNS) error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "wire")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: link.Index}) // ETH_P_ALL
	}))
	heard := &wire{}
	var done sync.WaitGroup
	done.Go(func() {
		packet := make([]byte, 2048)
		for {
			n, err := file.Read(packet)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			if ofClient(packet[:n], client) {
				heard.mu.Lock()
				heard.n++
				heard.mu.Unlock()
			}
		}
	})
	w.t.Cleanup(func() { file.Close(); done.Wait() })
	return heard
}

// ofClient says whether an IPv4 packet of TCP is from or to an address and port.
func ofClient(p []byte, client netip.AddrPort) bool {
	if len(p) < 40 || p[0]>>4 != 4 || p[9] != unix.IPPROTO_TCP {
		return false
	}
	tcp := p[int(p[0]&15)*4:]
	for i := range 2 {
		address, ok := netip.AddrFromSlice(p[12+4*i : 16+4*i])
		if ok && netip.AddrPortFrom(address, binary.BigEndian.Uint16(tcp[2*i:])) == client {
			return true
		}
	}
	return false
}

func (h *wire) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// TestForkOfWhatIsAwake: the forked one goes on, with its connections; each of the others goes on from where it was, by itself, and nobody
// outside hears of the connections that they had.
func TestForkOfWhatIsAwake(t *testing.T) {
	w := newWorld(t, nil)
	web := w.parent()
	held := w.dial(web)
	if got := w.fork("web", "one", "two"); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("made %v", got)
	}
	w.must(held.ask())
	client := netip.MustParseAddrPort(held.LocalAddr().String())
	own := w.listen(web.Pod, client)
	w.must(held.ask())
	known.Eventually(t, "the wire of the forked one is heard", func() bool { return own.count() > 0 })

	var heard []*wire
	var children []*known.Server
	for _, name := range []string{"one", "two"} {
		c := w.server("c-" + name)
		heard = append(heard, w.listen(c.Pod, client))
		c.StartAs(harness.Container{Annotations: map[string]string{"identity": name}}, mib, web)
		c.GoesOn()
		children = append(children, c)
	}
	if a, b := children[0].Get("GET", "/random"), children[1].Get("GET", "/random"); a == b || len(a) < 32 {
		t.Errorf("random bytes are %s and %s", a, b)
	}
	children[0].Count()
	children[1].GoesOn()
	web.GoesOn()
	w.must(held.ask())
	for i, h := range heard {
		if n := h.count(); n > 0 {
			t.Errorf("%d packets of the forked one's connection passed the pod of child %d", n, i)
		}
	}

	children[0].Sleep() // and from then on it is like any other
	web.Sleep()
	children[0].GoesOn()
	web.GoesOn()
	w.must(held.ask())
}

// TestForkOfASleeper: it sleeps on; its forks have its files, and nothing of theirs is lost when it goes.
func TestForkOfASleeper(t *testing.T) {
	w := newWorld(t, nil)
	web := w.parent()
	web.Sleep()
	before := w.used()
	names := w.fork("web", "-n", "10")
	if now, err := w.Status(w.context(), "web"); err != nil || now.GetState() != "asleep" || now.GetWakes() != 0 {
		t.Errorf("the forked one: %v %v", now, err)
	}
	if len(names) != 10 {
		t.Fatalf("made %v", names)
	}
	if more := w.used() - before; more*20 > 10*before {
		t.Errorf("ten forks take %d bytes more, one takes %d", more, before)
	}
	w.must(w.Remove(w.context(), "web"))
	w.become(names[3], web).GoesOn()
}

// used is what the snapshots take of the disk, files with several names once.
func (w *world) used() (bytes int64) {
	w.t.Helper()
	seen := make(map[uint64]bool)
	w.must(filepath.WalkDir(w.Path(w.DataDir()), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		return nil
	}))
	return bytes
}

// TestForkIsRefused: by name, and nothing is made.
func TestForkIsRefused(t *testing.T) {
	w := newWorld(t, map[string]string{"fork-freeze-max": `"20ms"`})
	web := w.parent()
	w.refused("fork-freeze-max is 20ms", "web", "one")
	web.GoesOn()
	web.Sleep()
	w.fork("web", "one")
	w.refused("one: there is a workload of that name already", "web", "two", "one")
	w.refused("named twice", "web", "two", "two")
	w.refused("../x", "web", "../x")
	w.fork("web", "two") // none of the refusals has made it
	child := w.become("one", web)
	child.GoesOn()
	w.refused("there is a workload of that name already", "web", "one")
	web.GoesOn()
}

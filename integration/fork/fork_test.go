// Package fork tests workloads that are made of what another is: they go on from there, each by itself, and the forked one notices
// nothing.
package fork

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// stalledBytes is more than all buffers on the way hold.
const stalledBytes = 32 << 20

// request asks for so many bytes, and reads nothing.
func (l *line) request(n int) error {
	_, err := fmt.Fprintf(l, "GET /bytes?n=%d HTTP/1.1\r\nHost: web\r\n\r\n", n)
	return err
}

// drain reads them.
func (l *line) drain(want int64) error {
	if err := l.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	answer, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if n, err := io.Copy(io.Discard, answer.Body); err != nil || n != want {
		return fmt.Errorf("%d bytes of %d: %v", n, want, err)
	}
	return nil
}

func (l *line) client() netip.AddrPort { return netip.MustParseAddrPort(l.LocalAddr().String()) }

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
	held, stalled := w.dial(web), w.dial(web)
	w.must(stalled.request(stalledBytes)) // nobody reads: the server has more to send, and asks again and again whether it may
	if got := w.fork("web", "one", "two"); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("made %v", got)
	}
	w.must(held.ask())
	own := w.listen(web.Pod, stalled.client())
	known.Eventually(t, "the forked one asks whether it may go on", func() bool { return own.count() > 0 })

	var heard []*wire
	var children []*known.Server
	for _, name := range []string{"one", "two"} {
		c := w.server("c-" + name)
		heard = append(heard, w.listen(c.Pod, stalled.client()))
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
	w.must(stalled.drain(stalledBytes))
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

// TestTemplate: a workload begins from another's snapshot, whether that sleeps or has gone on, and from then on each is by itself; only a template
// in the same scope that fits is one to begin from, and what is missing is told.
func TestTemplate(t *testing.T) {
	w := newWorld(t, nil)
	web := w.server("web")
	t.Cleanup(web.HangUp)
	web.Start(harness.Container{Flags: []string{"--null-io"}, Annotations: map[string]string{"identity": "base", "template": "true"}}, mib)
	early := w.server("early")
	early.Start(harness.Container{Flags: []string{"--null-io"}, Annotations: map[string]string{"restore": "base"}}, mib)
	w.told("early", "cold-started", "base has no snapshot on this node")
	w.refuse("early-and-strict", "base has no snapshot on this node", map[string]string{"restore": "base", "on-restore-failure": "block"}, nil)

	web.Sleep()
	var warm []*known.Server
	for i, restore := range []string{"base", "base@1"} {
		s := w.server(fmt.Sprint("warm", i))
		t.Cleanup(s.HangUp)
		s.StartAs(harness.Container{Annotations: map[string]string{"restore": restore}}, mib, web)
		s.GoesOn()
		w.told(s.ID, "restored", "")
		warm = append(warm, s)
	}
	warm[0].Count()
	warm[1].GoesOn()
	warm[0].Sleep()
	warm[0].GoesOn()

	w.refuse("changed", "differs from that of the template base in [process.env", map[string]string{"restore": "base"}, []string{"OTHER=1"})
	w.refuse("past", "has snapshot 1 on this node, and 7 is asked for", map[string]string{"restore": "base@7", "on-restore-failure": "block"}, nil)
	w.fork("web", "plain")
	w.refuse("closed", "plain is no template", map[string]string{"restore": "plain"}, nil)

	web.GoesOn()
	late := w.server("late") // the template runs, and its last snapshot is there
	late.StartAs(harness.Container{Annotations: map[string]string{"restore": "base", "identity": "late"}}, mib, warm[1])
	if got := late.Get("GET", "/counter"); got != "1" {
		t.Errorf("the counter is %s, of the snapshot it was 1", got)
	}
	w.told("late", "restored", "")
}

// told looks how a container's last wake has ended.
func (w *world) told(id, outcome, detail string) {
	w.t.Helper()
	s, err := w.Status(w.context(), id)
	w.must(err)
	if last := s.GetLastWake(); last.GetOutcome() != outcome || !strings.Contains(last.GetDetail(), detail) {
		w.t.Errorf("%s: %s %q, want %s %q", id, last.GetOutcome(), last.GetDetail(), outcome, detail)
	}
}

// refuse starts a container, which must fail and leave nothing.
func (w *world) refuse(id, want string, annotations map[string]string, env []string) {
	w.t.Helper()
	pod, err := w.NewPod(w.context(), id)
	w.must(err)
	_, err = w.Run(w.context(), harness.Container{
		ID: id, Image: "testserver", NetNS: pod.Path, Detach: true, Annotations: annotations, Env: append([]string{fmt.Sprint("TESTSERVER_MIB=", mib)}, env...),
	})
	if err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("%s: %v; want %q", id, err, want)
	}
	w.must(w.RemovePod(w.context(), pod))
	_ = w.Remove(w.context(), id) // ctr leaves the container
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

// TestForkBesideFiles: what the forked one has outside, its forks know of, whether it was awake or not: over an empty directory, too, they go on
// only where that is allowed.
func TestForkBesideFiles(t *testing.T) {
	w := newWorld(t, nil)
	full, empty := filepath.Join(w.Dir, "full"), filepath.Join(w.Dir, "empty")
	_, err := w.Shell(w.context(), fmt.Sprintf("mkdir %[1]s %[2]s; echo x >%[1]s/file", full, empty))
	w.must(err)
	mount := func(source string) []string {
		return []string{"--null-io", "--mount", "type=bind,src=" + source + ",dst=/data,options=rbind:rw"}
	}
	web := w.server("web")
	t.Cleanup(web.HangUp)
	web.Start(harness.Container{Flags: mount(full)}, mib)
	w.fork("web", "of-awake", "allowed")
	web.Sleep()
	w.fork("web", "of-asleep")
	for _, name := range []string{"of-awake", "of-asleep"} {
		pod, err := w.NewPod(w.context(), name)
		w.must(err)
		_, err = w.Run(w.context(), harness.Container{
			ID: name, Image: "testserver", NetNS: pod.Path, Detach: true, Annotations: map[string]string{"identity": name},
			Env: []string{fmt.Sprint("TESTSERVER_MIB=", mib)}, Flags: mount(empty),
		})
		if err == nil || !strings.Contains(err.Error(), "it is a copy of the workload web") {
			t.Errorf("%s: %v", name, err)
		}
		_ = w.Remove(w.context(), name) // ctr leaves the container
		w.must(w.RemovePod(w.context(), pod))
	}
	c := w.server("c-allowed")
	t.Cleanup(c.HangUp)
	c.StartAs(harness.Container{Annotations: map[string]string{"identity": "allowed", "allow-stale-volumes": "true"}, Flags: mount(empty)}, mib, web)
	c.GoesOn()
}

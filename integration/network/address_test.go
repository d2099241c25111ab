package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// serve runs a server in a pod that there is. Its echo is bound to an address, and so must go on being reached by it.
func serve(t *testing.T, w *harness.World, pod harness.Pod, flags ...string) *server {
	t.Helper()
	s := &server{t: t, world: w, pod: pod, web: w.HTTP()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Remove(ctx, id); err != nil {
			t.Error(err)
		}
		if err := w.RemovePod(ctx, s.pod); err != nil {
			t.Error(err)
		}
	})
	_, err := w.Run(s.ctx(), harness.Container{
		ID: id, Image: "testserver", NetNS: pod.Path, Detach: true, Flags: append([]string{"--null-io"}, flags...),
		Args: []string{"/usr/bin/testserver", "-echo", fmt.Sprint(pod.IP, ":", echoPort), "-manners", fmt.Sprint(":", mannersPort)},
	})
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(mannersPort)))
	return s
}

// moves ends the shim of a sleeper, as a crash of its node does, gives its pod another namespace, and starts the container
// again there.
func (s *server) moves(another func(*server) harness.Pod) {
	s.t.Helper()
	record, err := s.world.Record(id)
	s.must(err)
	s.must(syscall.Kill(record.Pid, syscall.SIGKILL))
	s.must(s.world.WaitTask(s.ctx(), id, ""))
	s.must(s.world.RemovePod(s.ctx(), s.pod))
	s.pod = another(s)
	eventually(s.t, "containerd forgets the old task", func() bool {
		_, err = s.world.Ctr(s.ctx(), "tasks", "start", "--detach", "--null-io", id)
		return err == nil || !strings.Contains(err.Error(), "already exists")
	})
	s.must(err)
}

// anotherAddress is a new pod of the same name, where everything is another but the path.
func anotherAddress(s *server) harness.Pod {
	pod, err := s.world.NewPod(s.ctx(), s.pod.Name)
	s.must(err)
	return pod
}

// anotherCard has the address of the pod before, and another hardware address.
func anotherCard(s *server) harness.Pod {
	pod := anotherAddress(s)
	_, err := s.world.Shell(s.ctx(), fmt.Sprintf(`
ip -n %[1]s addr flush dev eth0
ip -n %[1]s addr add %[2]s/24 dev eth0
ip -n %[1]s route replace default via %[3]s.1`, pod.Name, s.pod.IP, pod.IP[:strings.LastIndex(pod.IP, ".")]))
	s.must(err)
	pod.IP = s.pod.IP
	return pod
}

// mended is what Status tells of a rung; nil when there is nothing.
func mended(now *shimv1.StatusResponse, rung string) *shimv1.Rung {
	for _, r := range now.GetMended() {
		if r.GetName() == rung {
			return r
		}
	}
	return nil
}

// A container that was left asleep goes on in a pod with another address, twice: by its old state, with its listeners, also
// the one bound to the first address. What it had of connections is reset inside, without a word outside. From then on it
// sleeps and wakes as any other, and its new connections live through it.
func TestAnotherAddressGoesOn(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	pod, err := w.NewPod(t.Context(), "mover")
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, w, pod)
	first := pod.IP
	for range 2 {
		before := strings.TrimSpace(string(s.get("/pid")))
		old := s.dial(mannersPort)
		s.must(exchange(old, "hello"))
		s.sleep()
		s.moves(anotherAddress)
		now, err := w.WaitState(s.ctx(), id, "awake")
		s.must(err)
		if last := now.GetLastWake(); last.GetOutcome() != "restored" {
			t.Fatalf("%s: %s", last.GetOutcome(), last.GetDetail())
		}
		if s.pod.IP == first || !strings.Contains(now.GetSlowPath(), fmt.Sprintf("%s is %s inside", s.pod.IP, first)) {
			t.Errorf("addresses %v, fast path off: %q", now.GetAddresses(), now.GetSlowPath())
		}
		for _, rung := range []string{"connections", "announced"} {
			if r := mended(now, rung); !r.GetRepaired() {
				t.Errorf("%s: %v", rung, r)
			}
		}
		if got := strings.TrimSpace(string(s.get("/pid"))); got != before {
			t.Errorf("the process is %s, was %s", got, before)
		}
		if g := s.ended(old); g.End != "reset" {
			t.Errorf("the old connection is %s inside", g.End)
		}
		s.livesHere()
	}
}

// livesHere has a server sleep and wake, on a connection that lives through it and by those that are held.
func (s *server) livesHere() {
	s.t.Helper()
	open := s.dial(echoPort)
	s.must(exchange(open, "open"))
	for i := range 3 {
		asleep := s.sleep()
		if asleep.GetGate() != "held" {
			s.t.Errorf("the gate is %s", asleep.GetGate())
		}
		c := open
		reason := "packet"
		if i == 1 {
			c, reason = s.dial(echoPort), "connection"
		}
		s.must(exchange(c, fmt.Sprint("round ", i)))
		s.woken(asleep, reason)
		s.must(exchange(open, "still open"))
	}
	for _, r := range s.ladder() {
		if !r.GetOk() || r.GetRepaired() {
			s.t.Errorf("ladder: %v", r)
		}
	}
}

// Where only the card is another, connections live on: peers hear by gratuitous ARP where the address is now.
func TestAnotherCardIsAnnounced(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	pod, err := w.NewPod(t.Context(), "mover")
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, w, pod)
	open := s.dial(echoPort)
	s.must(exchange(open, "hello"))
	s.sleep()
	heard := hearARP(t, w, "plain0")
	s.moves(anotherCard)
	now, err := w.WaitState(s.ctx(), id, "awake")
	s.must(err)
	if r := mended(now, "announced"); !r.GetRepaired() || !strings.Contains(r.GetDetail(), "hardware address was") {
		t.Errorf("announced: %v", r)
	}
	eventually(t, "a gratuitous ARP of each kind", func() bool {
		return heard.gratuitous(s.pod.IP, 1) && heard.gratuitous(s.pod.IP, 2)
	})
	s.must(exchange(open, "still open"))
	if r := mended(now, "connections"); r != nil {
		t.Errorf("connections: %v", r)
	}
	s.livesHere()
}

// arps are the frames that a bridge has seen.
type arps struct {
	mu  sync.Mutex // guards the below
	all [][]byte
}

// hearARP listens on an interface of the node.
func hearARP(t *testing.T, w *harness.World, name string) *arps {
	t.Helper()
	var wire *os.File
	if err := ns.WithNetNSPath(w.NodeNetNS(), func(ns.NetNS) error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		wire = os.NewFile(uintptr(fd), "arp")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0608, Ifindex: link.Index}) // ETH_P_ARP
	}); err != nil {
		t.Fatal(err)
	}
	heard := &arps{}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			frame := make([]byte, 128)
			n, err := wire.Read(frame)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			heard.mu.Lock()
			heard.all = append(heard.all, frame[:n])
			heard.mu.Unlock()
		}
	})
	t.Cleanup(func() { wire.Close(); done.Wait() })
	return heard
}

// gratuitous says whether an address was told to everybody by an ARP packet of that operation.
func (a *arps) gratuitous(ip string, operation byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	address := netip.MustParseAddr(ip).AsSlice()
	for _, f := range a.all {
		if len(f) >= 42 && bytes.Equal(f[:6], bytes.Repeat([]byte{0xff}, 6)) && f[21] == operation &&
			bytes.Equal(f[28:32], address) && bytes.Equal(f[38:42], address) && bytes.Equal(f[6:12], f[22:28]) {
			return true
		}
	}
	return false
}

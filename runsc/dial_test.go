package runsc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A server that is bound to the sandbox's loopback is reached, speaks first, and answers after its client's end; and a
// checkpoint can be made once the connection has ended.
func TestDial(t *testing.T) {
	b := newBox(t, "loopback")
	b.writeSpec(func(s *specs.Spec) {
		for i := range s.Linux.Namespaces {
			if n := &s.Linux.Namespaces[i]; n.Type == specs.NetworkNamespace {
				n.Path = namespaceWithLoopback(t)
			}
		}
	}, "loopback")
	r, w, err := os.Pipe()
	b.must(err)
	defer r.Close()
	b.create(IO{Stdout: w})
	b.must(w.Close())
	b.must(b.Start(b.ctx, b.id))
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "listening\n" {
		t.Fatalf("init said %q, %v", line, err)
	}
	helper, err := os.Open(built(t, "../cmd/hibernate-helper"))
	b.must(err)
	defer helper.Close()
	for to, hello := range map[string]string{"127.0.0.1:7000": "hello 127.0.0.1\n", "[::1]:7001": "hello ::1\n"} {
		begin := time.Now()
		c, err := b.Dial(b.ctx, b.id, helper, netip.MustParseAddrPort(to))
		b.must(err)
		t.Logf("%s: connected in %v", to, time.Since(begin))
		answered(t, c, hello)
		<-c.Done
	}
	if _, err := b.Dial(b.ctx, b.id, helper, netip.MustParseAddrPort("127.0.0.1:7001")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nothing listens: %v", err)
	}
	c, err := b.Dial(b.ctx, b.id, helper, netip.MustParseAddrPort("127.0.0.1:7002")) // which keeps it open
	b.must(err)
	b.must(c.Close())
	<-c.Done
	c, err = b.Dial(b.ctx, b.id, helper, netip.MustParseAddrPort("127.0.0.1:7002"))
	b.must(err)
	defer c.Close()
	b.must(c.End(b.ctx)) // while it is open
	<-c.Done
	b.image()
}

func answered(t *testing.T, c *Inside, hello string) {
	t.Helper()
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(c)
	if line, err := lines.ReadString('\n'); err != nil || line != hello {
		t.Fatalf("it said %q, %v", line, err)
	}
	if _, err := io.Copy(c, io.LimitReader(zeros{}, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "1048576 bytes\n" {
		t.Fatalf("after the end: %q, %v", rest, err)
	}
}

// namespaceWithLoopback is the path of a network namespace whose loopback is up; runsc gives the sandbox one only then.
func namespaceWithLoopback(t *testing.T) string {
	t.Helper()
	type made struct {
		file *os.File
		err  error
	}
	done := make(chan made)
	go func() { // its thread stays in the namespace, and ends with it
		runtime.LockOSThread()
		var m made
		if m.err = unix.Unshare(unix.CLONE_NEWNET); m.err == nil {
			m.err = loopbackUp()
		}
		if m.err == nil {
			m.file, m.err = os.Open("/proc/thread-self/ns/net")
		}
		done <- m
	}()
	m := <-done
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(func() { m.file.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.file.Fd())
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

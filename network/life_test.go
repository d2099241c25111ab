package network_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

func TestRemoveLeavesThePodAsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := dump(t, w.pod)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	must(t, l.Connect(t.Context()))
	must(t, l.SetGate(t.Context(), held(80)))
	f, err := l.Listen(t.Context(), 80, network.Backlog{})
	must(t, err)
	must(t, f.Close())
	if slices.Equal(before, dump(t, w.pod)) {
		t.Fatal("the dump shows nothing of the link")
	}
	must(t, l.Remove(t.Context()))
	same(t, before, dump(t, w.pod))
	must(t, l.Remove(t.Context()))
	same(t, before, dump(t, w.pod))
}

// Another process, which has the path only, removes what a dead one left; even
// when I went first, and hib0 with it.
func TestRemoveByPath(t *testing.T) {
	t.Parallel()
	for name, innerFirst := range map[string]bool{"link there": false, "I gone first": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := dump(t, w.pod)
			l := w.open(t)
			must(t, l.Close())
			if innerFirst {
				h := handle(t, w.inner)
				must(t, h.LinkDel(get(t, h, "eth0")))
			}
			must(t, network.Remove(t.Context(), network.Options{Pod: w.pod}))
			same(t, before, dump(t, w.pod))
		})
	}
	must(t, network.Remove(t.Context(), network.Options{Pod: filepath.Join(t.TempDir(), "none")}))
}

func TestOpenAdopts(t *testing.T) {
	w := newWorld(t)
	before := dump(t, w.pod)
	first := w.open(t)
	must(t, first.SetGate(t.Context(), held(80)))
	pod := dump(t, w.pod)
	must(t, first.Close())
	second := w.open(t)
	same(t, pod, dump(t, w.pod))
	g, err := second.Gate(t.Context())
	must(t, err)
	if g.Position != network.GateHeld || !slices.Equal(g.Ports, []uint16{80}) {
		t.Fatalf("the gate was not left as found: %v", g)
	}
	third := w.open(t) // beside it
	must(t, third.Connect(t.Context()))
	must(t, third.Remove(t.Context()))
	same(t, before, dump(t, w.pod))
}

func TestOpenAfterInnerWasLost(t *testing.T) {
	w := newWorld(t)
	before := dump(t, w.pod)
	must(t, w.open(t).Close())
	h := handle(t, w.inner)
	must(t, h.LinkDel(get(t, h, "eth0")))
	l := w.open(t)
	newStandIn(t, w)
	must(t, l.Connect(t.Context()))
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	must(t, say(c, "hello", answerTime))
	must(t, c.Close())
	must(t, l.Remove(t.Context()))
	same(t, before, dump(t, w.pod))
}

func TestSecondWorkloadIsTold(t *testing.T) {
	w := newWorld(t)
	w.open(t)
	other := filepath.Join(t.TempDir(), "other")
	must(t, network.NewNamespace(other))
	defer func() { must(t, network.RemoveNamespace(other)) }()
	_, err := network.Open(t.Context(), network.Options{Pod: w.pod, Inner: other, Attachment: w.att})
	if !errors.Is(err, network.ErrShared) {
		t.Fatalf("second workload: %v", err)
	}
}

func TestHostNetworkIsRefused(t *testing.T) {
	w := newWorld(t)
	if _, err := network.Capture(t.Context(), "/proc/self/ns/net"); !errors.Is(err, network.ErrHostNetwork) {
		t.Fatalf("capture: %v", err)
	}
	a := &network.Attachment{Interface: "eth0", MTU: 1500, Addresses: prefixes("10.99.0.2/24")}
	if _, err := network.Open(t.Context(), network.Options{Pod: "/proc/self/ns/net", Inner: w.inner, Attachment: a}); !errors.Is(err, network.ErrHostNetwork) {
		t.Fatalf("open: %v", err)
	}
}

func TestNamespaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	w := newWorld(t) // for its root check
	_ = w
	must(t, network.NewNamespace(path))
	if err := network.NewNamespace(path); !errors.Is(err, os.ErrExist) {
		t.Fatalf("again: %v", err)
	}
	must(t, network.RemoveNamespace(path))
	must(t, network.RemoveNamespace(path))
}

func TestNothingLeaks(t *testing.T) {
	w := newWorld(t)
	use := func() {
		l, err := network.Open(t.Context(), network.Options{Pod: w.pod, Inner: w.inner, Attachment: w.att})
		must(t, err)
		must(t, l.PrepareInner(t.Context()))
		must(t, l.Connect(t.Context()))
		must(t, l.SetGate(t.Context(), held(80)))
		must(t, l.Quiet(t.Context(), time.Millisecond))
		f, err := l.Listen(t.Context(), 80, network.Backlog{})
		must(t, err)
		must(t, f.Close())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		l.Check(ctx, []uint16{echoPort}) // nobody answers
		must(t, l.Remove(t.Context()))
		must(t, l.Close())
	}
	w.open(t)
	use()
	files, goroutines, threads := count(t, "fd"), runtime.NumGoroutine(), count(t, "task")
	for range 5 {
		use()
	}
	eventually(t, "descriptors and goroutines as before", func() bool {
		return count(t, "fd") <= files && runtime.NumGoroutine() <= goroutines
	})
	if now := count(t, "task"); now > threads+3 {
		t.Fatalf("%d threads, were %d", now, threads)
	}
	outside(t)
}

// outside looks that every thread of the process is in its own namespace.
func outside(t *testing.T) {
	t.Helper()
	home, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	entries, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, e := range entries {
		if ns, err := os.Readlink("/proc/self/task/" + e.Name() + "/ns/net"); err == nil && ns != home {
			t.Errorf("thread %s is in %s", e.Name(), ns)
		}
	}
}

func count(t *testing.T, what string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/" + what)
	must(t, err)
	return len(entries)
}

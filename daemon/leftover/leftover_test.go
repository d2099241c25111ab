package leftover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// containerd is one that answers for its containers only.
type containerd struct {
	socket string

	mu   sync.Mutex
	has  map[string]bool // by namespace/id; guarded by mu
	fail string          // a gRPC status to answer all with; guarded by mu
}

func newContainerd(t *testing.T, has ...string) *containerd {
	t.Helper()
	c := &containerd{socket: filepath.Join(t.TempDir(), "c.sock"), has: map[string]bool{}}
	for _, name := range has {
		c.has[name] = true
	}
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: c, Protocols: &protocols}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return c
}

// ServeHTTP answers as gRPC does: what is there with a message and a trailer, what isn't with headers only.
func (c *containerd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := string(body[7:]) // five bytes, the field's tag and length
	c.mu.Lock()
	has, fail := c.has[r.Header.Get("containerd-namespace")+"/"+id], c.fail
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/grpc")
	switch {
	case r.URL.Path != "/containerd.services.containers.v1.Containers/Get":
		w.Header().Set("Grpc-Status", "12")
	case fail != "":
		w.Header().Set("Grpc-Status", fail)
		w.Header().Set("Grpc-Message", "out of%20order")
	case !has:
		w.Header().Set("Grpc-Status", "5")
	default:
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{0, 0, 0, 0, 0})
		w.Header().Set("Grpc-Status", "0")
	}
}

func (c *containerd) set(name string, has bool, fail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has[name], c.fail = has, fail
}

// host is a data and a run directory.
type host struct {
	*testing.T
	data, run string
	log       bytes.Buffer
}

func newHost(t *testing.T) *host { return &host{T: t, data: t.TempDir(), run: t.TempDir()} }

// left makes what a shim of a container has left.
func (n *host) left(namespace, id, containerd string) (dir string) {
	n.Helper()
	dir = snapshot.DirFor(n.data, namespace, id, "")
	l, err := snapshot.OpenLocal(dir, snapshot.WithOwner(namespace, id, ""), snapshot.WithContainerd(containerd))
	if err == nil {
		err = errors.Join(l.SetState(n.Context(), snapshot.Awake), l.Close())
	}
	if err != nil {
		n.Fatal(err)
	}
	return dir
}

func (n *host) collector(after time.Duration) *Collector {
	return &Collector{DataDir: n.data, RunDir: n.run, After: after, Log: slog.New(slog.NewTextHandler(&n.log, nil))}
}

func (n *host) there(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

func (n *host) told(text string) int { return strings.Count(n.log.String(), text) }

// What is removed has been gone for long enough, by the word of the containerd that ran it; nothing else is.
func TestCollector(t *testing.T) {
	c, other := newContainerd(t, "default/lives", "default/back"), newContainerd(t)
	n := newHost(t)
	gone := n.left("default", "gone", c.socket)
	kept := map[string]string{
		"its container exists":             n.left("default", "lives", c.socket),
		"its containerd doesn't answer":    n.left("default", "away", c.socket+".away"),
		"nobody knows which containerd":    n.left("default", "old", ""),
		"something is in its quarantine":   n.left("default", "aside", c.socket),
		"its shim lives":                   n.left("default", "live", other.socket),
		"its container comes and goes":     n.left("default", "back", c.socket),
		"its head can't be read":           n.left("default", "damaged", c.socket),
		"it is of something else, a stray": filepath.Join(n.data, "default", "lost+found"),
	}
	n.must(os.MkdirAll(filepath.Join(kept["something is in its quarantine"], "quarantine", "1-x"), 0o700))
	n.must(os.WriteFile(filepath.Join(kept["its head can't be read"], "head.json"), []byte("{"), 0o600))
	n.must(os.Mkdir(kept["it is of something else, a stray"], 0o700))
	start, err := handover.StartTime(os.Getpid())
	n.must(err)
	n.must(handover.WriteRecord(n.run, handover.Record{Namespace: "default", ID: "live", Pid: os.Getpid(), StartTime: start}))

	look, now := n.collector(time.Hour), time.Now()
	look.look(t.Context(), now)
	look.look(t.Context(), now.Add(59*time.Minute))
	if !n.there(gone) || n.told("will be removed") != 1 {
		t.Fatalf("it is removed too early, or not told once:\n%s", &n.log)
	}
	c.set("default/back", false, "")
	look.look(t.Context(), now.Add(61*time.Minute))
	if n.there(gone) || n.told(`was removed" workload=default/gone`) != 1 {
		t.Errorf("it is there after an hour, or not told once:\n%s", &n.log)
	}
	c.set("default/back", true, "")
	look.look(t.Context(), now.Add(62*time.Minute))
	c.set("default/back", false, "")
	for _, m := range []time.Duration{63, 122} {
		look.look(t.Context(), now.Add(m*time.Minute))
	}
	for why, dir := range kept {
		if !n.there(dir) {
			t.Errorf("removed although %s:\n%s", why, &n.log)
		}
	}
	c.set("default/gone", false, "14")
	n.left("default", "gone", c.socket)
	for m := range time.Duration(5) {
		look.look(t.Context(), now.Add((200+100*m)*time.Minute))
	}
	if !n.there(gone) || !n.there(kept["its container comes and goes"]) {
		t.Errorf("removed by a containerd that is out of order:\n%s", &n.log)
	}
}

func (n *host) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// A container that came back between two looks, slept and lost its shim again counts anew.
func TestCollectorCountsAnew(t *testing.T) {
	c, n := newContainerd(t), newHost(t)
	dir := n.left("default", "web", c.socket)
	look, now := n.collector(time.Hour), time.Now()
	look.look(t.Context(), now)
	n.left("default", "web", c.socket) // another head
	look.look(t.Context(), now.Add(2*time.Hour))
	if !n.there(dir) {
		t.Error("removed at once")
	}
	look.look(t.Context(), now.Add(4*time.Hour))
	if n.there(dir) {
		t.Error("not removed in the end")
	}
}

func TestCollectorThatNeverRemoves(t *testing.T) {
	c, n := newContainerd(t), newHost(t)
	dir := n.left("default", "web", c.socket)
	look := n.collector(0)
	for h := range time.Duration(3) {
		look.look(t.Context(), time.Now().Add(1000*h*time.Hour))
	}
	if !n.there(dir) || n.told("is gone; it is kept") != 1 {
		t.Errorf("removed, or not told once:\n%s", &n.log)
	}
}

func TestRemove(t *testing.T) {
	c := newContainerd(t, "default/lives")
	n := newHost(t)
	n.left("default", "gone", c.socket)
	lives, old := n.left("default", "lives", c.socket), n.left("default", "old", "")
	busy := n.left("default", "busy", c.socket)
	l, err := snapshot.OpenLocal(busy)
	n.must(err)
	defer l.Close()
	left, err := Find(n.data, n.run)
	n.must(err)
	want := map[string]error{"default/gone": nil, "default/lives": ErrExists, "default/old": ErrUnknown, "default/busy": ErrBusy}
	for _, one := range left {
		if err := Remove(t.Context(), one, false); !errors.Is(err, want[one.Name()]) {
			t.Errorf("%s: %v, want %v", one.Name(), err, want[one.Name()])
		}
		if there := n.there(one.Dir); there != (want[one.Name()] != nil) {
			t.Errorf("%s is there: %t", one.Name(), there)
		}
	}
	for _, one := range left {
		switch one.Dir {
		case lives, old:
			if err := Remove(t.Context(), one, true); err != nil || n.there(one.Dir) {
				t.Errorf("%s by force: %v", one.Name(), err)
			}
		case busy:
			if err := Remove(t.Context(), one, true); !errors.Is(err, ErrBusy) || !n.there(busy) {
				t.Errorf("%s by force: %v", one.Name(), err)
			}
		}
	}
}

// One that somebody else has removed since it was found is not made again.
func TestRemoveWhatIsGone(t *testing.T) {
	c, n := newContainerd(t), newHost(t)
	dir := n.left("default", "gone", c.socket)
	left, err := Find(n.data, n.run)
	n.must(err)
	n.must(os.RemoveAll(dir))
	if err := Remove(t.Context(), left[0], false); !errors.Is(err, snapshot.ErrNoHead) || n.there(dir) {
		t.Errorf("%v; there: %t", err, n.there(dir))
	}
}

func TestAskTellsWhy(t *testing.T) {
	c, n := newContainerd(t), newHost(t)
	c.set("", false, "13")
	n.left("default", "web", c.socket)
	left, err := Find(n.data, n.run)
	n.must(err)
	fate, err := Ask(t.Context(), left[0])
	if fate != Unknown || err == nil || !strings.Contains(err.Error(), `status "13": out of order`) || !strings.Contains(err.Error(), c.socket) {
		t.Errorf("%s: %v", fate, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if fate, err := Ask(ended, left[0]); fate != Unknown || !errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", fate, err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		head snapshot.Head
		want string
	}{
		{snapshot.Head{Namespace: "default", ID: "web"}, "default/web"},
		{snapshot.Head{Namespace: "default", ID: "web", Identity: "shop"}, "default/identity=shop"},
		{snapshot.Head{Namespace: "k8s.io", Identity: "shop/db"}, "k8s.io/identity=shop/db"},
		{snapshot.Head{}, "/data/x"},
	} {
		l := Leftover{Key: node.Key{Namespace: c.head.Namespace, ID: c.head.ID}, Stored: snapshot.Stored{Dir: "/data/x", Head: c.head}}
		if got := l.Name(); got != c.want {
			t.Errorf("%+v is named %s, want %s", c.head, got, c.want)
		}
	}
}

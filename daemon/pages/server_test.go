package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

const mib = pages.MaxRead

// world is a store with one workload's snapshots, which tells what is done with them.
type world struct {
	mu     sync.Mutex // guards the fields below
	opens  int
	closes int
	reads  []int64 // offsets in pages.img
	kept   []uint64
	err    error         // of opens
	block  chan struct{} // reads wait for it; nil: they don't
	data   []byte
}

var (
	web         = pages.Workload{Namespace: "default", ID: "web", Lineage: "abc"}
	generation5 = durable.Generation{Sequence: 5, Epoch: 2, Manifest: "m/five"}
	generation4 = durable.Generation{Sequence: 4, Epoch: 1, Manifest: "m/four"}
)

func (w *world) Known(of pages.Workload) (Known, error) {
	return Known{Name: of.Namespace + "/" + of.ID, Sequence: 5, Epoch: 2}, nil
}

func (w *world) Open(ctx context.Context, of pages.Workload, sequence uint64) (Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opens++
	switch {
	case w.err != nil:
		return nil, w.err
	case of != web:
		return nil, durable.ErrNone
	case sequence == 4:
		return &openedOne{w, generation4}, nil
	case sequence == 0 || sequence == 5:
		return &openedOne{w, generation5}, nil
	}
	return nil, &OpenError{Generations: []durable.Generation{generation5, generation4}, Err: durable.ErrNone}
}

func (w *world) Keep(_ context.Context, _ pages.Workload, sequence uint64) error {
	w.kept = append(w.kept, sequence)
	return nil
}

type openedOne struct {
	*world
	generation durable.Generation
}

func (o *openedOne) Name() string                   { return "default/web" }
func (o *openedOne) Generation() durable.Generation { return o.generation }
func (o *openedOne) Generations() []durable.Generation {
	return []durable.Generation{generation5, generation4}
}
func (o *openedOne) Document() []byte { return []byte("the manifest") }
func (o *openedOne) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closes++
}

func (o *openedOne) File(name string) (File, error) {
	if name != pagesFile && name != "checkpoint.img" {
		return nil, durable.ErrNone
	}
	return &file{o.world, name}, nil
}

type file struct {
	*world
	name string
}

func (f *file) Size() int64 { return int64(len(f.data)) }

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	block := f.block
	if f.name == pagesFile {
		f.reads = append(f.reads, off)
	}
	f.mu.Unlock()
	if block != nil {
		<-block
	}
	return bytes.NewReader(f.data).ReadAt(p, off)
}

func newWorld(size int) *world {
	w := &world{data: make([]byte, size)}
	rand.NewChaCha8([32]byte{1}).Read(w.data)
	return w
}

// serving serves until the test ends.
func serving(t *testing.T, o Options) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "pages.sock")
	serve(t, o, socket)
	return socket
}

func serve(t *testing.T, o Options, socket string) (stop func()) {
	t.Helper()
	if o.Secret == nil {
		o.Secret = []byte("secret")
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(o).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, socket string) *pages.Client {
	t.Helper()
	c, err := pages.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func wantClass(t *testing.T, what, class string, err error) {
	t.Helper()
	if e, ok := errors.AsType[*pages.Error](err); !ok || e.Class != class {
		t.Errorf("%s: %v, want %s", what, err, class)
	}
}

// Whoever opens a snapshot, or attaches to it, reads what it has; it is opened once, and closed once.
func TestReads(t *testing.T) {
	w := newWorld(3*mib + 100)
	socket := serving(t, Options{Store: w, Linger: time.Millisecond})
	shim, sidecar := dial(t, socket), dial(t, socket)
	a, document, err := shim.Open(t.Context(), web, 0, nil, false)
	if err != nil || string(document) != "the manifest" || a.Sequence != 5 || a.Epoch != 2 || len(a.Generations) != 2 || a.Ticket == "" {
		t.Fatalf("%+v, %q, %v", a, document, err)
	}
	if err := sidecar.Attach(t.Context(), a.Ticket); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*pages.Client{shim, sidecar} {
		for _, part := range [][2]int{{0, mib}, {mib - 1, 2}, {2*mib + 5, mib}, {3 * mib, 100}} {
			p := make([]byte, part[1])
			if err := c.Read(t.Context(), pagesFile, p, int64(part[0])); err != nil || !bytes.Equal(p, w.data[part[0]:part[0]+part[1]]) {
				t.Errorf("%d bytes at %d: wrong, or %v", part[1], part[0], err)
			}
		}
	}
	_ = shim.Close()
	_ = sidecar.Close()
	eventually(t, "it is closed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.opens == 1 && w.closes == 1
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("in vain: ", what)
		}
	}
}

// Requests that make no sense are refused, and the connection goes on; what can't be read as one ends it.
func TestBadRequests(t *testing.T) {
	w := newWorld(mib + 100)
	socket := serving(t, Options{Store: w})
	c := dial(t, socket)
	one := make([]byte, 1)
	wantClass(t, "a read of nothing", pages.Invalid, c.Read(t.Context(), pagesFile, one, 0))
	wantClass(t, "a made-up ticket", pages.Refused, c.Attach(t.Context(), "AAAA"))
	if _, _, err := c.Open(t.Context(), web, 5, nil, false); err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]int64{"before the beginning": -1, "behind the end": mib + 100, "far behind it": 1 << 62} {
		wantClass(t, what, pages.Invalid, c.Read(t.Context(), pagesFile, one, at))
	}
	wantClass(t, "too much", pages.Invalid, c.Read(t.Context(), pagesFile, make([]byte, mib+1), 0))
	wantClass(t, "no such file", pages.None, c.Read(t.Context(), "../head.json", one, 0))
	wantClass(t, "another workload's", pages.None, second(c.Open(t.Context(), pages.Workload{Namespace: "default", ID: "other", Lineage: "abc"}, 5, nil, false)))
	a, _, err := c.Open(t.Context(), web, 7, nil, false)
	wantClass(t, "no such generation", pages.None, err)
	if len(a.Generations) != 2 {
		t.Errorf("what there is instead is not told: %+v", a)
	}
	if _, _, err := c.Open(t.Context(), web, 4, nil, false); err != nil {
		t.Errorf("after all that: %v", err)
	}
	for what, text := range map[string]string{
		"an unknown op": `{"Op":"write"}`, "nothing": `{}`, "an open of nobody": `{"Op":"open"}`, "a pin of nobody": `{"Op":"pin"}`,
	} {
		if got := raw(t, socket, text); !strings.Contains(got, pages.Invalid) {
			t.Errorf("%s: %q", what, got)
		}
	}
	for what, text := range map[string]string{"no JSON": "read, please", "a list": "[1]", "a number for a word": `{"Op":1}`} {
		if got := raw(t, socket, text); got != "" {
			t.Errorf("%s: %q", what, got)
		}
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(one); err != io.EOF {
		t.Errorf("a message of 4 GiB: %d, %v", n, err)
	}
}

func second(_ pages.Answer, _ []byte, err error) error { return err }

// raw sends a message, and gives what is answered.
func raw(t *testing.T, socket, text string) string {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	message := append([]byte{0, 0, byte(len(text) >> 8), byte(len(text))}, text...)
	if _, err := conn.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// A ticket is good for one generation, with the next daemon of the node, too, and nobody else can make one.
func TestTickets(t *testing.T) {
	w := newWorld(100)
	socket := filepath.Join(t.TempDir(), "pages.sock")
	stop := serve(t, Options{Store: w}, socket)
	c := dial(t, socket)
	a, _, err := c.Open(t.Context(), web, 5, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	looked, err := c.Look(t.Context(), web, 4)
	if err != nil || looked.Sequence != 5 || looked.Epoch != 2 || looked.Name != "default/web" {
		t.Fatalf("%+v, %v", looked, err)
	}
	stop()
	serve(t, Options{Store: w}, socket)
	for _, ticket := range []string{a.Ticket, looked.Ticket} {
		c := dial(t, socket)
		if err := c.Attach(t.Context(), ticket); err != nil {
			t.Errorf("with the next daemon: %v", err)
		}
		for i := range ticket {
			changed := []byte(ticket)
			changed[i] = 'A' + (changed[i]-'A'+1)%26
			if string(changed) != ticket {
				wantClass(t, fmt.Sprintf("changed at %d", i), pages.Refused, c.Attach(t.Context(), string(changed)))
			}
		}
	}
	generation := generation5
	generation5.Manifest = "m/another"
	defer func() { generation5 = generation }()
	wantClass(t, "another snapshot of that number", pages.Refused, dial(t, serving(t, Options{Store: w})).Attach(t.Context(), a.Ticket))
	wantClass(t, "of another node", pages.Refused, dial(t, serving(t, Options{Store: w, Secret: []byte("other")})).Attach(t.Context(), looked.Ticket))
}

// Each kind of error is told as what is to be done about it.
func TestClasses(t *testing.T) {
	for class, errs := range map[string][]error{
		pages.Unavailable: {store.ErrUnavailable, context.DeadlineExceeded, errors.New("whatever"), durable.ErrContended, durable.ErrLeaseLost},
		pages.None:        {durable.ErrNone, durable.ErrDestroyed},
		pages.Corrupt:     {&snapshot.CorruptError{File: "m"}, store.ErrNotFound},
		pages.Refused: {
			durable.ErrWrongKey, durable.ErrForeign, durable.ErrRolledBack, &durable.OwnedError{}, &durable.FencedError{}, store.ErrRefused,
			&snapshot.VersionError{},
		},
	} {
		for _, err := range errs {
			w := newWorld(1)
			w.err = fmt.Errorf("open: %w", err)
			wantClass(t, err.Error(), class, second(dial(t, serving(t, Options{Store: w})).Open(t.Context(), web, 0, nil, false)))
		}
	}
	wantClass(t, "without a store", pages.NoStore, second(dial(t, serving(t, Options{})).Open(t.Context(), web, 0, nil, false)))
}

// What the store doesn't answer ends in time, and all that is open is bounded.
func TestBounds(t *testing.T) {
	w := newWorld(mib)
	w.block = make(chan struct{})
	socket := serving(t, Options{Store: w, Sessions: 1, Connections: 2, ReadWithin: 50 * time.Millisecond, Linger: time.Hour})
	t.Cleanup(func() { close(w.block) })
	c := dial(t, socket)
	if _, _, err := c.Open(t.Context(), web, 5, nil, false); err != nil {
		t.Fatal(err)
	}
	wantClass(t, "a read that hangs", pages.Unavailable, c.Read(t.Context(), pagesFile, make([]byte, 10), 0))
	other := dial(t, socket)
	wantClass(t, "another snapshot", pages.Unavailable, second(other.Open(t.Context(), web, 4, nil, false)))
	if _, _, err := other.Open(t.Context(), web, 5, nil, false); err != nil {
		t.Errorf("the same one: %v", err)
	}
	third := dial(t, socket)
	if _, err := third.Look(t.Context(), web, 0); err == nil {
		t.Error("a connection too many is served")
	}
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantClass(t, "after it was ended for all", pages.Unavailable, other.Read(t.Context(), pagesFile, make([]byte, 10), 0))
}

// What is expected is fetched in that order, so much ahead and no more, and handed over without another read.
func TestAhead(t *testing.T) {
	const chunks, each = 20, 4
	w := newWorld(chunks * mib)
	socket := serving(t, Options{Store: w, AheadEach: each})
	c := dial(t, socket)
	if _, _, err := c.Open(t.Context(), web, 5, nil, false); err != nil {
		t.Fatal(err)
	}
	if err := c.Expect(t.Context(), []int{7, 3, 99, -1, 7}, true); err != nil {
		t.Fatal(err)
	}
	read := func() []int64 {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(w.reads)
	}
	eventually(t, "as many as may be are fetched", func() bool { return len(read()) == each })
	first := read()
	slices.Sort(first)
	if !slices.Equal(first, []int64{0, mib, 3 * mib, 7 * mib}) {
		t.Errorf("fetched first: %v", first)
	}
	p := make([]byte, mib)
	for _, n := range []int64{19, 7, 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18} {
		if err := c.Read(t.Context(), pagesFile, p, n*mib); err != nil || !bytes.Equal(p, w.data[n*mib:(n+1)*mib]) {
			t.Fatalf("chunk %d: wrong, or %v", n, err)
		}
	}
	all := read()
	if slices.Sort(all); len(all) != chunks || len(slices.Compact(all)) != chunks {
		t.Errorf("%d reads of %d chunks", len(all), chunks)
	}
	if err := c.Read(t.Context(), pagesFile, p, 0); err != nil || !bytes.Equal(p, w.data[:mib]) {
		t.Errorf("once more: wrong, or %v", err)
	}
}

// Many readers of many sessions, of which some leave in the middle, leave nothing behind.
func TestManyComeAndGo(t *testing.T) {
	w := newWorld(8 * mib)
	socket := serving(t, Options{Store: w, Linger: time.Millisecond, Ahead: 6, AheadEach: 4})
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			c, err := pages.Dial(t.Context(), socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, _, err := c.Open(t.Context(), web, uint64(4+i%2), []int{i % 8}, true); err != nil {
				t.Error(err)
				return
			}
			p := make([]byte, mib)
			for n := range i % 9 {
				if err := c.Read(t.Context(), pagesFile, p, int64(n)*mib); err != nil || !bytes.Equal(p, w.data[n*mib:][:mib]) {
					t.Errorf("chunk %d: wrong, or %v", n, err)
				}
			}
		})
	}
	all.Wait()
	eventually(t, "all is closed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.opens == w.closes
	})
}

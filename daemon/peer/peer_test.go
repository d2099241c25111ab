package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// book is a Directory.
type book struct {
	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	durable.Contact
	incarnation string
	err         error
}

func (b *book) Contact(_ context.Context, node string) (durable.Contact, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[node]
	if !ok {
		return durable.Contact{}, "", durable.ErrNoContact
	}
	return e.Contact, e.incarnation, e.err
}

func (b *book) change(node string, change func(*entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[node]
	change(&e)
	b.entries[node] = e
}

// giver has one workload.
type giver struct {
	snapshot *snapshot.Snapshot
	wake     bool

	mu      sync.Mutex
	yielded []string
	sent    int
}

func (g *giver) Offer(ctx context.Context, a Ask) (*snapshot.Snapshot, func(), error) {
	if g.wake {
		<-ctx.Done()
		return nil, nil, fmt.Errorf("%w: it runs", ErrRuns)
	}
	return g.snapshot, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sent++
	}, nil
}

func (g *giver) Yield(_ context.Context, a Ask) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.yielded = append(g.yielded, fmt.Sprintf("%s to %s as %d", a.workload(), a.Node, a.Sequence))
	return nil
}

func (g *giver) Taken(Ask) {}

// pair is a server a, and a client b.
type pair struct {
	t      *testing.T
	book   *book
	giver  *giver
	client *Client
	ask    Ask
}

const inA, inB = "aaaa", "bbbb"

func newPair(t *testing.T) *pair {
	t.Helper()
	key := func() *Key {
		k, err := LoadKey(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ka, kb := key(), key()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &book{entries: map[string]entry{
		"a": {Contact: durable.Contact{Address: l.Addr().String(), Key: ka.Fingerprint}, incarnation: inA},
		"b": {Contact: durable.Contact{Address: "nowhere:1", Key: kb.Fingerprint}, incarnation: inB},
	}}
	g := &giver{snapshot: makeSnapshot(t)}
	s := NewServer(ServerOptions{Node: "a", Incarnation: inA, Key: ka, Directory: b, Workloads: g})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	c := NewClient(ClientOptions{Node: "b", Incarnation: inB, Key: kb, Directory: b})
	t.Cleanup(func() { c.Close(); cancel(); serving.Wait() })
	return &pair{t, b, g, c, Ask{Namespace: "default", Identity: "db", Owner: durable.Owner{Node: "a", Incarnation: inA, Claim: "c"}, Wait: time.Second}}
}

// makeSnapshot is one of 3.5 MiB.
func makeSnapshot(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	dir := t.TempDir()
	m := snapshot.Manifest{Sequence: 3, Epoch: 2, Namespace: "default", ID: "c", Identity: "db", Created: time.Now().UTC()}
	if err := os.MkdirAll(filepath.Join(dir, "image"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
		data := bytes.Repeat([]byte{byte(i), 7, 9}, []int{1000, 1 << 20, 5}[i])
		f := snapshot.File{Name: name, Size: int64(len(data))}
		for at := 0; at < len(data); at += snapshot.ChunkSize {
			f.CRC32C = append(f.CRC32C, crc32.Checksum(data[at:min(at+snapshot.ChunkSize, len(data))], crc32.MakeTable(crc32.Castagnoli)))
		}
		m.Files = append(m.Files, f)
		if err := os.WriteFile(filepath.Join(dir, "image", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	document, err := snapshot.EncodeManifest(m)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "manifest.json"), document, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.OpenReceived(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *pair) fetch() (*snapshot.Snapshot, error) {
	return p.client.Fetch(p.t.Context(), p.ask, filepath.Join(p.t.TempDir(), "got"), func(int64, int64) {})
}

// A snapshot comes as it was sent, and the claim after it.
func TestFetch(t *testing.T) {
	p := newPair(t)
	dir := filepath.Join(t.TempDir(), "got")
	var done, all int64
	s, err := p.client.Fetch(t.Context(), p.ask, dir, func(d, a int64) { done, all = d, a })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context()); err != nil || !s.Manifest().Same(p.giver.snapshot.Manifest()) || done != all || uint64(all) != s.Size() {
		t.Errorf("%v; %d of %d", err, done, all)
	}
	p.ask.Sequence = s.Sequence()
	if err := errors.Join(p.client.Yield(t.Context(), p.ask), p.client.Taken(t.Context(), p.ask)); err != nil {
		t.Fatal(err)
	}
	p.giver.mu.Lock()
	defer p.giver.mu.Unlock()
	if len(p.giver.yielded) != 1 || p.giver.yielded[0] != "default/db to b as 3" || p.giver.sent != 1 {
		t.Errorf("%q, sent %d", p.giver.yielded, p.giver.sent)
	}
}

// Who isn't who he should be, at either end, is told and stops; what can't be had doesn't.
func TestWho(t *testing.T) {
	other := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		change   func(p *pair)
		identity bool
		words    string
	}{
		"the server has another key":          {func(p *pair) { p.book.change("a", func(e *entry) { e.Key = other }) }, true, "for node a has the key"},
		"the client has another key":          {func(p *pair) { p.book.change("b", func(e *entry) { e.Key = other }) }, true, "says to be node b"},
		"the client is another incarnation":   {func(p *pair) { p.book.change("b", func(e *entry) { e.incarnation = "x" }) }, true, "incarnation x"},
		"the server's contact isn't by a key": {func(p *pair) { p.book.change("a", func(e *entry) { e.err = durable.ErrForeign }) }, true, "not by who has the store's key"},
		"the client's contact isn't by a key": {func(p *pair) { p.book.change("b", func(e *entry) { e.err = durable.ErrWrongKey }) }, true, "not by who has the store's key"},
		"the server is another incarnation": {func(p *pair) {
			p.book.change("a", func(e *entry) { e.incarnation = "x" })
			p.ask.Owner.Incarnation = "x"
		}, true, "of incarnation x, and this is"},
		"the owner is another incarnation": {func(p *pair) { p.ask.Owner.Incarnation = "x" }, false, "incarnation x"},
		"the server has no address":        {func(p *pair) { p.book.change("a", func(e *entry) { e.Address = "" }) }, false, "peer-address"},
		"the server is unknown":            {func(p *pair) { delete(p.book.entries, "a") }, false, "peer-address"},
		"the client is unknown":            {func(p *pair) { delete(p.book.entries, "b") }, false, "how node b is known"},
		"nobody listens":                   {func(p *pair) { p.book.change("a", func(e *entry) { e.Address = "127.0.0.1:1" }) }, false, "refused"},
		"it runs":                          {func(p *pair) { p.giver.wake, p.ask.Wait = true, time.Millisecond }, false, "it runs"},
		"another workload is sent":         {func(p *pair) { p.ask.Identity = "other" }, true, "sends default/db"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			c.change(p)
			_, err := p.fetch()
			var identity *IdentityError
			if errors.As(err, &identity) != c.identity || err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v", err)
			}
			if !c.identity && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRuns) {
				t.Errorf("of no kind: %v", err)
			}
			if len(p.giver.yielded) != 0 {
				t.Error("it was yielded")
			}
		})
	}
}

// A wrong byte and an answer that was cut are seen, leave nothing, and the node is left alone for a moment.
func TestDamagedOnTheWay(t *testing.T) {
	for name, damage := range map[string]func(p *pair) error{
		"a byte": func(p *pair) error {
			f, err := os.OpenFile(filepath.Join(p.giver.snapshot.ImageDir(), "pages.img"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("x"), 2<<20)
			return errors.Join(err, f.Close())
		},
		"its end": func(p *pair) error {
			p.book.change("a", func(e *entry) { e.Address = cutter(t, e.Address, 1<<20) })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if err := damage(p); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "got")
			var come int64
			_, err := p.client.Fetch(t.Context(), p.ask, dir, func(done, _ int64) { come = done })
			if !errors.Is(err, ErrUnavailable) || come == 0 {
				t.Fatalf("after %d bytes: %v", come, err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something is left: %v", err)
			}
			if _, again := p.fetch(); !errors.Is(again, ErrUnavailable) || !strings.Contains(again.Error(), "node a") {
				t.Errorf("%v", again)
			}
		})
	}
}

// cutter is an address from which n bytes come of what comes from another, and no more.
func cutter(t *testing.T, address string, n int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	relay := func(client net.Conn) {
		defer client.Close()
		server, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		relays.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
		_, _ = io.CopyN(client, server, n)
	}
	relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { relay(client) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); relays.Wait() })
	return l.Addr().String()
}

// The key is made once, and only its owner can read it.
func TestKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	first, err := LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if again, err := LoadKey(dir); err != nil || again.Fingerprint != first.Fingerprint || len(first.Fingerprint) != 64 {
		t.Errorf("%+v, %v", again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("%v", err)
	}
}

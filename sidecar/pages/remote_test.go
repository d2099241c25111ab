package pages

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// daemon serves one file, and may be gone, refuse, or answer what is wrong.
type daemon struct {
	t      *testing.T
	socket string
	data   []byte

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	conns    []net.Conn
	answers  []string // to be given first, instead of what is right: a class, "wrong", "short" or "end"
	attached []remoteRequest
}

func newDaemon(t *testing.T, size int) *daemon {
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "pages.sock"), data: make([]byte, size)}
	rand.NewChaCha8([32]byte{7}).Read(d.data)
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) start() {
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		d.t.Error(err)
		return
	}
	d.mu.Lock()
	d.listener = l
	d.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, c)
			d.mu.Unlock()
			go d.serve(c)
		}
	}()
}

func (d *daemon) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		_ = d.listener.Close()
	}
	for _, c := range d.conns {
		_ = c.Close()
	}
}

func (d *daemon) serve(c net.Conn) {
	defer c.Close()
	for {
		var head [4]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		text := make([]byte, binary.BigEndian.Uint32(head[:]))
		var r remoteRequest
		if _, err := io.ReadFull(c, text); err != nil || json.Unmarshal(text, &r) != nil {
			return
		}
		answer, body := map[string]any{}, []byte(nil)
		if r.Op == "attach" {
			d.mu.Lock()
			d.attached = append(d.attached, r)
			d.mu.Unlock()
		} else {
			body = bytes.Clone(d.data[r.Offset:][:r.Length])
			answer["Bytes"] = r.Length
		}
		switch next := d.next(r.Op); next {
		case "":
		case "end":
			return
		case "short":
			body = body[:len(body)/2]
		case "wrong":
			body[0] ^= 1
		default:
			answer, body = map[string]any{"Class": next, "Error": "so it is"}, nil
		}
		text, _ = json.Marshal(answer)
		_, err := c.Write(append(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), body...))
		if err != nil || answer["Bytes"] != nil && len(body) != answer["Bytes"] {
			return
		}
	}
}

func (d *daemon) next(op string) (a string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op == "read" && len(d.answers) > 0 {
		a, d.answers = d.answers[0], d.answers[1:]
	}
	return a
}

func (d *daemon) file() File {
	f := File{Name: "pages.img", Size: int64(len(d.data))}
	for at := 0; at < len(d.data); at += chunk {
		f.CRC32C = append(f.CRC32C, crc32.Checksum(d.data[at:min(at+chunk, len(d.data))], castagnoli))
	}
	return f
}

// open opens the file through a source.
func (d *daemon) open(source Source) *Open {
	d.t.Helper()
	b, err := source.Open("pages.img")
	if err != nil {
		d.t.Fatal(err)
	}
	o, err := NewStore(chunk, 4).Open(d.file(), b)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = o.Close() })
	return o
}

func (d *daemon) remote(patience time.Duration) *Remote {
	return &Remote{Socket: d.socket, Ticket: "the ticket", Patience: patience, Ahead: true}
}

// Many readers get what is right, and the ticket is shown with each connection.
func TestRemote(t *testing.T) {
	d := newDaemon(t, 40*chunk+100)
	d.start()
	o := d.open(d.remote(0))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range int64(30) {
				off := (n*7+int64(i)*3)%39*chunk + 50
				if got, err := read(o, off, chunk); err != nil || !bytes.Equal(got, d.data[off:off+chunk]) {
					t.Errorf("at %d: wrong, or %v", off, err)
				}
			}
		})
	}
	all.Wait()
	if n := len(d.attached); n < 1 || n > 8 {
		t.Errorf("%d connections", n)
	}
	for _, r := range d.attached {
		if r.Ticket != "the ticket" || !r.Ahead {
			t.Errorf("attached by %+v", r)
		}
	}
}

// A daemon that isn't there yet, ends in the middle, answers half or says that the store can't be reached, is asked again.
func TestRemoteIsPatient(t *testing.T) {
	d := newDaemon(t, 4*chunk)
	d.answers = []string{"end", "short", unavailable, unavailable}
	o := d.open(d.remote(20 * time.Second))
	go func() {
		time.Sleep(30 * time.Millisecond)
		d.start()
	}()
	if got, err := read(o, 0, 4*chunk); err != nil || !bytes.Equal(got, d.data) {
		t.Fatalf("wrong, or %v", err)
	}
	d.stop()
	d.start()
	if got, err := read(o, 0, chunk); err != nil || !bytes.Equal(got, d.data[:chunk]) {
		t.Fatalf("with the next daemon: wrong, or %v", err)
	}
	if len(d.answers) != 0 {
		t.Errorf("not given: %v", d.answers)
	}
}

// Patience has an end, and what no patience helps is told at once.
func TestRemoteGivesUp(t *testing.T) {
	d := newDaemon(t, chunk)
	var corrupt *CorruptError
	if _, err := read(d.open(d.remote(50*time.Millisecond)), 0, chunk); err == nil || errors.As(err, &corrupt) || !strings.Contains(err.Error(), "in vain") {
		t.Errorf("without a daemon: %v", err)
	}
	d.start()
	for _, class := range []string{"corrupt", "refused", "none", "invalid", "no-store"} {
		d.answers = []string{class}
		var told *RemoteError
		if _, err := read(d.open(d.remote(time.Hour)), 0, chunk); !errors.As(err, &told) || told.Class != class || errors.As(err, &corrupt) {
			t.Errorf("%s: %v", class, err)
		}
	}
	d.answers = []string{"wrong"}
	if got, err := read(d.open(d.remote(time.Hour)), 0, chunk); !errors.As(err, &corrupt) || len(got) != 0 {
		t.Errorf("wrong bytes: %d, %v", len(got), err)
	}
}

// What is expected is told with the first connection.
func TestRemoteExpects(t *testing.T) {
	d := newDaemon(t, chunk)
	d.start()
	b, err := d.remote(0).Open("pages.img")
	if err != nil {
		t.Fatal(err)
	}
	b.(Expecter).Expect([]int{5, 2})
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		told := len(d.attached) == 1 && len(d.attached[0].First) == 2 && d.attached[0].First[0] == 5
		d.mu.Unlock()
		if told {
			break
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatal("it isn't told")
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// mends are what a Tiers has told.
type mends struct {
	mu  sync.Mutex
	all []int
}

func (m *mends) note(_ string, chunk int, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, chunk)
}

// A chunk that is wrong in the first place is read from the second, and only that one.
func TestTiers(t *testing.T) {
	d := newDaemon(t, 4*chunk)
	d.start()
	dir := t.TempDir()
	local := bytes.Clone(d.data)
	local[2*chunk+9] ^= 1
	path := filepath.Join(dir, "pages.img")
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what string
		make func()
		only []string
		want []int
	}{
		{"all is right", func() { write(d.data) }, nil, nil},
		{"one is wrong", func() { write(local) }, nil, []int{2}},
		{"it ends early", func() { write(d.data[:2*chunk+100]) }, nil, []int{2, 3}},
		{"it is gone", func() { _ = os.Remove(path) }, nil, []int{-1}},
		{"it is only elsewhere", func() {}, []string{"pages.img"}, nil},
	} {
		c.make()
		var m mends
		o := d.open(Tiers{First: Directory(dir), Second: d.remote(0), SecondOnly: c.only, Mended: m.note})
		for at := int64(0); at < 4*chunk; at += chunk {
			if got, err := read(o, at, chunk); err != nil || !bytes.Equal(got, d.data[at:at+chunk]) {
				t.Errorf("%s: at %d: wrong, or %v", c.what, at, err)
			}
		}
		if len(m.all) != len(c.want) {
			t.Errorf("%s: mended %v, want %v", c.what, m.all, c.want)
		}
		for i := range c.want {
			if i < len(m.all) && m.all[i] != c.want[i] {
				t.Errorf("%s: mended %v, want %v", c.what, m.all, c.want)
			}
		}
	}
}

// Where neither has it, what is wrong with the first counts, and nothing is handed over.
func TestTiersFail(t *testing.T) {
	d := newDaemon(t, 2*chunk)
	d.start()
	dir := t.TempDir()
	local := bytes.Clone(d.data)
	local[0] ^= 1
	if err := os.WriteFile(filepath.Join(dir, "pages.img"), local, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []string{"wrong", "corrupt", "refused"} {
		d.answers = []string{answer}
		var m mends
		o := d.open(Tiers{First: Directory(dir), Second: d.remote(0), Mended: m.note})
		var corrupt *CorruptError
		got, err := read(o, 0, 2*chunk)
		if !errors.As(err, &corrupt) || corrupt.Chunk != 0 || len(got) != 0 || len(m.all) != 0 {
			t.Errorf("%s: %d bytes, mended %v, %v", answer, len(got), m.all, err)
		}
	}
}

package flat

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

const pageSize = 4096

// What is touched while memory is loaded is told in the next snapshot, in that order and at its place, and goes on being told
// through later ones, wherever the memory lies in them.
func TestTouchedFirst(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"sidecar": fmt.Sprintf("%q", heldSidecar(t))})})
	a := startMapped(t, w, "web")
	a.sleep()
	if first := a.manifest().FirstTouched(); len(first) != 0 {
		t.Fatalf("of one that never woke is told %v", first)
	}
	before := a.places()
	late, early := before.lastTwo(80 << 20)

	fast := a.order("slow")
	a.wake()
	a.touch(late)
	a.touch(early)
	if !a.isLoading() {
		t.Fatal("all was loaded before it was touched: nothing can be told")
	}
	fast()
	a.loaded()
	a.sleep()
	if one, two := a.toldAt(late), a.toldAt(early); one < 0 || one >= two {
		t.Fatalf("MiB %d and %d, touched in this order, are told at %d and %d of %v", late, early, one, two, a.manifest().FirstTouched())
	}
	for range 2 {
		a.wake()
		a.loaded()
		for _, i := range before.first(mappedMiB / 8) {
			a.Get("GET", fmt.Sprintf("/drop/%d", i))
		}
		a.sleep()
		if one, two := a.toldAt(late), a.toldAt(early); one < 0 || two < 0 {
			t.Fatalf("MiB %d and %d are told at %d and %d of %v", late, early, one, two, a.manifest().FirstTouched())
		}
	}
	after := a.places()
	t.Logf("the pages moved by %d and %d MiB", (after[late]-before[late])>>20, (after[early]-before[early])>>20)
	if after[late] == before[late] || after[early] == before[early] {
		t.Error("a page has not moved: that it is found where it moves was not seen")
	}
	a.touch(late)
	a.touch(early)
}

// A wrong list does no harm, wherever it is wrong.
func TestTouchedWrongly(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	a := start(t, w, "web", 16, harness.Container{})
	all := fmt.Sprintf(`[{"page":0,"count":%d}]`, 16<<20/pageSize)
	for _, hint := range []string{
		`[{"page":18446744073709551615,"count":18446744073709551615}]`, `[{"page":1099511627776,"count":1}]`, `[{"page":0,"count":4294967296}]`,
		`[{"page":-1,"count":1}]`, `"all"`, `[[1,2]]`, `{}`, all,
		`[{"page":7,"count":1},{"page":7,"count":1},{"page":6,"count":3}]`, // right in form, and not what was touched
	} {
		a.sleep()
		a.hint(hint)
		a.GoesOn()
		a.loaded()
	}
	a.sleep()
	if got := a.manifest().FirstTouched(); len(got) > 0 && got[0].Count > snapshot.MaxTouchedBytes/pageSize {
		t.Errorf("%v is told", got)
	}
	a.GoesOn()
}

// What is told is read from the disk beside the boot, and nothing else of the memory, and the sidecar is told it, too.
func TestTouchedIsReadAhead(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"sidecar": fmt.Sprintf("%q", heldSidecar(t))})})
	a := start(t, w, "web", 64, harness.Container{})
	a.sleep()
	a.hint(`[{"page":10240,"count":1},{"page":2567,"count":300}]`)
	want := []int{40, 10, 11}
	release := a.order("hold-all")
	file := a.image("pages.img")
	a.forget(file)
	if got := inMemory(t, file); len(got) != 0 {
		t.Fatalf("chunks %v are still in memory", got)
	}
	woken := make(chan error, 1)
	go func() {
		_, err := w.Wake(a.ctx(), a.ID)
		woken <- err
	}()
	a.eventually("the sidecar has begun", func() bool { return len(a.sidecars()) == 1 })
	a.eventually("what was told is in memory", func() bool {
		got := inMemory(t, file)
		return !slices.ContainsFunc(want, func(c int) bool { return !slices.Contains(got, c) })
	})
	if got := inMemory(t, file); len(got) != len(want) {
		t.Errorf("chunks %v are in memory, told are %v", got, want)
	}
	options, err := os.ReadFile(filepath.Join(a.Bundle(), "hibernate/loading/gcs_opts.json"))
	a.must(err)
	var told struct{ First []int }
	a.must(json.Unmarshal(options, &told))
	if !slices.Equal(told.First, want) {
		t.Errorf("the sidecar is told %v, want %v", told.First, want)
	}
	release()
	a.must(<-woken)
	a.GoesOn()
	a.loaded()
}

// mappedMiB is memory enough for several of the 32 MiB that gVisor asks for around what is touched.
const mappedMiB = 256

// mapped is a server with a large mapping, which no system call ever gets: such a one would need all of it
// (docs/decisions/0006). Each MiB begins with its number; /N touches it, /drop/N gives it back.
const mapped = `
import http.server, mmap, os
MiB = 1 << 20
m = mmap.mmap(-1, int(os.environ["MIB"]) * MiB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
junk = os.urandom(4080)
for i in range(0, len(m), 4096):
    m[i:i+4096] = b"pagesof!" + (i // 4096).to_bytes(8, "little") + junk
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        at = int(self.path.split("/")[-1]) * MiB
        if self.path.startswith("/drop"):
            m.madvise(mmap.MADV_DONTNEED, at, MiB)
        text = str(int.from_bytes(m[at+8:at+16], "little") * 4096 // MiB).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
http.server.HTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
`

// startMapped runs such a server. It ends with the test.
func startMapped(t *testing.T, w *harness.World, id string) *app {
	t.Helper()
	a := &app{T: t, w: w}
	pod, err := w.NewPod(a.ctx(), id)
	a.must(err)
	a.Server = known.New(t, w, id, pod)
	t.Cleanup(a.end)
	a.must(w.Import(a.ctx(), "python3"))
	_, err = w.Run(a.ctx(), harness.Container{
		ID: id, Image: "python3", NetNS: pod.Path, Detach: true, Flags: []string{"--null-io"},
		Env: []string{fmt.Sprint("MIB=", mappedMiB)}, Args: []string{"/usr/bin/python3", "-c", mapped},
	})
	a.must(err)
	a.must(w.WaitPort(a.ctx(), a.Address(8080)))
	return a
}

func (a *app) touch(mib int) {
	a.Helper()
	if got := a.Get("GET", fmt.Sprintf("/%d", mib)); got != fmt.Sprint(mib) {
		a.Fatalf("MiB %d is %s", mib, got)
	}
}

// places are where in pages.img the mapping's MiB begin, by their number.
type places map[int]int64

func (a *app) places() places {
	a.Helper()
	f, err := os.Open(a.image("pages.img"))
	a.must(err)
	defer f.Close()
	found := places{}
	head := make([]byte, 16)
	for off := int64(0); ; off += pageSize {
		if _, err := f.ReadAt(head, off); err != nil {
			break
		}
		if page := binary.LittleEndian.Uint64(head[8:]); string(head[:8]) == "pagesof!" && page%256 == 0 {
			found[int(page/256)] = off
		}
	}
	if len(found) < mappedMiB/2 {
		a.Fatalf("%d MiB are in the image", len(found))
	}
	return found
}

// first takes those away that lie first, and returns them.
func (p places) first(n int) []int {
	all := slices.SortedFunc(maps.Keys(p), func(a, b int) int { return cmp.Compare(p[a], p[b]) })[:n]
	for _, i := range all {
		delete(p, i)
	}
	return all
}

// lastTwo are the MiB that lies last, and the last one of those so many bytes before it.
func (p places) lastTwo(apart int64) (late, early int) {
	late, early = -1, -1
	for i := range p {
		if late < 0 || p[i] > p[late] {
			late = i
		}
	}
	for i := range p {
		if p[i] <= p[late]-apart && (early < 0 || p[i] > p[early]) {
			early = i
		}
	}
	return late, early
}

// toldAt is where in the newest snapshot's order the beginning of a MiB is; -1: nowhere.
func (a *app) toldAt(mib int) int {
	a.Helper()
	page := uint64(a.places()[mib] / pageSize)
	return slices.IndexFunc(a.manifest().FirstTouched(), func(r snapshot.PageRun) bool { return r.Page <= page && page < r.Page+r.Count })
}

type envelope struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	CRC32C  string          `json:"crc32c"`
	Body    json.RawMessage `json:"body"`
}

func (a *app) document() (path string, e envelope) {
	a.Helper()
	path = filepath.Join(filepath.Dir(a.image("pages.img")), "../manifest.json")
	data, err := os.ReadFile(path)
	a.must(err)
	a.must(json.Unmarshal(data, &e))
	return path, e
}

func (a *app) manifest() (m snapshot.Manifest) {
	a.Helper()
	_, e := a.document()
	a.must(json.Unmarshal(e.Body, &m))
	return m
}

// hint has the newest snapshot's manifest tell something else.
func (a *app) hint(touched string) {
	a.Helper()
	path, e := a.document()
	fields := map[string]json.RawMessage{}
	a.must(json.Unmarshal(e.Body, &fields))
	fields["touched"] = json.RawMessage(touched)
	var err error
	e.Body, err = json.Marshal(fields)
	a.must(err)
	e.CRC32C = fmt.Sprintf("%08x", crc32.Checksum(e.Body, crc32.MakeTable(crc32.Castagnoli)))
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	lines.SetEscapeHTML(false)
	a.must(lines.Encode(e))
	a.must(os.WriteFile(path, out.Bytes(), 0o600))
}

// forget has the kernel give back the memory of a file, which was synced.
func (a *app) forget(path string) {
	a.Helper()
	f, err := os.Open(path)
	a.must(err)
	defer f.Close()
	a.eventually("the file is forgotten", func() bool {
		a.must(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		return len(inMemory(a.T, path)) == 0
	})
}

// inMemory are the chunks of a file that are in memory in whole.
func inMemory(t *testing.T, path string) (chunks []int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	there := make([]byte, (len(mapped)+pageSize-1)/pageSize)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(len(mapped)), uintptr(unsafe.Pointer(&there[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	const per = snapshot.ChunkSize / pageSize
	for c := 0; c*per < len(there); c++ {
		if !slices.ContainsFunc(there[c*per:min(len(there), (c+1)*per)], func(b byte) bool { return b&1 == 0 }) {
			chunks = append(chunks, c)
		}
	}
	return chunks
}

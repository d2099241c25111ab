package flat

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

const (
	pageSize = 4096
	// touchedMiB is memory enough for several of the 32 MiB that gVisor asks for around what is touched.
	touchedMiB = 256
)

// What is touched while memory is loaded is told in the next snapshot, in that order and at its place, and goes on being told
// through later ones, wherever the memory lies in them.
func TestTouchedFirst(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"sidecar": fmt.Sprintf("%q", heldSidecar(t))})})
	a := start(t, w, "web", touchedMiB, harness.Container{})
	pages := a.blockPages(touchedMiB)
	a.sleep()
	if first := a.manifest().FirstTouched(); len(first) != 0 {
		t.Fatalf("of one that never woke is told %v", first)
	}
	before := a.placesOf(pages)
	late, early := before.lastTwo(40 << 20)

	a.touchWhileLoading(late, early, pages)
	a.tellsFirst(late, early, pages)
	for i := range 2 {
		a.wake()
		a.loaded()
		a.drop((i+1)*min(late, early)/3, pages)
		a.sleep()
		a.tells(late, early, pages)
	}
	after := a.placesOf(pages)
	t.Logf("the pages moved by %d and %d MiB", (after[late]-before[late])>>20, (after[early]-before[early])>>20)
	if after[late] == before[late] || after[early] == before[early] {
		t.Error("a page has not moved: that it is found where it moves was not seen")
	}
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

// touchWhileLoading wakes it, touches the one block and then the other while memory still comes, and has it sleep again. What a server
// has just allocated may lie so that a system call needs all of its memory (docs/decisions/0006): then nothing can be seen, and another
// wake is tried.
func (a *app) touchWhileLoading(first, second int, pages blockPages) {
	a.Helper()
	for range 8 {
		fast := a.order("slow")
		a.wake()
		a.touch(first, pages)
		a.touch(second, pages)
		seen := a.isLoading()
		fast()
		a.loaded()
		a.sleep()
		if seen {
			return
		}
	}
	a.Fatal("all was loaded each time before it was touched: nothing can be told")
}

// blockPages are the checksums of the first page of each MiB of the server's memory.
type blockPages map[int][32]byte

func (a *app) blockPages(mib int) blockPages {
	a.Helper()
	pages := blockPages{}
	for i := range mib {
		sum, err := hex.DecodeString(a.Get("GET", fmt.Sprintf("/memory/page?at=%d", i)))
		a.must(err)
		pages[i] = [32]byte(sum)
	}
	return pages
}

// drop has the server give the first blocks' memory back.
func (a *app) drop(mib int, pages blockPages) {
	a.Helper()
	a.Get("POST", fmt.Sprintf("/memory/drop?mib=%d", mib))
	for i := range mib {
		delete(pages, i)
	}
}

// places are where in pages.img the first pages of the server's blocks are.
type places map[int]int64

func (a *app) placesOf(pages blockPages) places {
	a.Helper()
	f, err := os.Open(a.image("pages.img"))
	a.must(err)
	defer f.Close()
	blocks := map[[32]byte]int{}
	for i, s := range pages {
		blocks[s] = i
	}
	found := places{}
	page := make([]byte, pageSize)
	for off := int64(0); ; off += pageSize {
		if _, err := f.ReadAt(page, off); err != nil {
			break
		}
		if i, ok := blocks[sha256.Sum256(page)]; ok {
			found[i] = off
		}
	}
	if len(found) != len(pages) {
		a.Fatalf("of %d blocks %d are in the image", len(pages), len(found))
	}
	return found
}

// lastTwo are the block that lies last, and the last one of those so many bytes before it.
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

func (a *app) touch(block int, pages blockPages) {
	a.Helper()
	if got := a.Get("GET", fmt.Sprintf("/memory/page?at=%d", block)); got != fmt.Sprintf("%x", pages[block]) {
		a.Fatalf("the page of block %d is another one", block)
	}
}

// tells looks that the first pages of both blocks are told of, and returns where they are in the order.
func (a *app) tells(late, early int, pages blockPages) (lateAt, earlyAt int) {
	a.Helper()
	where := a.placesOf(pages)
	at := func(block int) int {
		page := uint64(where[block] / pageSize)
		return slices.IndexFunc(a.manifest().FirstTouched(), func(r snapshot.PageRun) bool { return r.Page <= page && page < r.Page+r.Count })
	}
	if lateAt, earlyAt = at(late), at(early); lateAt < 0 || earlyAt < 0 {
		a.Fatalf("blocks %d and %d are told at %d and %d of %v", late, early, lateAt, earlyAt, a.manifest().FirstTouched())
	}
	return lateAt, earlyAt
}

func (a *app) tellsFirst(first, second int, pages blockPages) {
	a.Helper()
	if one, two := a.tells(first, second, pages); one >= two {
		a.Fatalf("blocks %d and %d, touched in this order, are told at %d and %d", first, second, one, two)
	}
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

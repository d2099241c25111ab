package snapshot

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// metaOf describes one memory file with those committed pages, and one more.
func metaOf(committed ...PageRun) []byte {
	msg := protowire.AppendTag(nil, fieldVersion, protowire.VarintType)
	msg = protowire.AppendVarint(msg, protoVersion1)
	for _, r := range committed {
		msg = protowire.AppendTag(msg, fieldMemAcct, protowire.BytesType)
		msg = protowire.AppendBytes(msg, rangeBytes(acctRange{r.Page * pageSize, r.end() * pageSize, true}))
	}
	main := append(binary.LittleEndian.AppendUint64(nil, uint64(len(msg))), msg...)
	return slices.Concat(main, graphBytes(), memoryFileBytes(10*pageSize, 0))
}

// checkHint fails unless what is taken of a manifest's hint lies in its file, and is no more than is ever kept.
func checkHint(t *testing.T, m Manifest) {
	t.Helper()
	var size int64
	for _, f := range m.Files {
		if f.Name == pagesFile {
			size = f.Size
		}
	}
	var sum uint64
	for _, r := range m.FirstTouched() {
		sum += r.Count
		if r.Count == 0 || r.end() < r.Page || r.end()*pageSize >= uint64(size)+pageSize {
			t.Fatalf("%+v of %d bytes", r, size)
		}
	}
	if sum > MaxTouchedBytes/pageSize || len(m.FirstTouched()) > MaxTouched {
		t.Fatalf("%d pages in %d runs", sum, len(m.FirstTouched()))
	}
	for _, c := range m.FirstChunks() {
		if c < 0 || int64(c)*ChunkSize >= size {
			t.Fatalf("chunk %d of %d bytes", c, size)
		}
	}
}

// A hint that can't be right is left alone; the manifest is as good.
func TestHintThatMakesNoSense(t *testing.T) {
	many := make([]string, MaxTouched+1)
	for i := range many {
		many[i] = `{"page":1,"count":1}`
	}
	for what, c := range map[string]struct {
		hint string
		runs int
	}{
		"a good one":              {`[{"page":3,"count":1},{"page":0,"count":3}]`, 2},
		"the last page":           {`[{"page":40959,"count":1}]`, 1},
		"none":                    {`null`, 0},
		"behind the end":          {`[{"page":40960,"count":1}]`, 0},
		"across the end":          {`[{"page":0,"count":1},{"page":1,"count":40960}]`, 0},
		"round the end":           {`[{"page":2,"count":18446744073709551615}]`, 0},
		"no pages":                {`[{"page":0,"count":0}]`, 0},
		"below nothing":           {`[{"page":-1,"count":1}]`, 0},
		"another thing":           {`{"page":0}`, 0},
		"text":                    {`"all"`, 0},
		"too many":                {`[` + strings.Join(many, ",") + `]`, 0},
		"too large":               {fmt.Sprintf(`[{"page":0,"count":%d},{"page":0,"count":1}]`, MaxTouchedBytes/pageSize), 0},
		"as large as can be":      {fmt.Sprintf(`[{"page":0,"count":%d}]`, MaxTouchedBytes/pageSize), 1},
		"more than can be parsed": {`[{"page":1e99,"count":1}]`, 0},
	} {
		file := File{Name: pagesFile, Size: 160<<20 - 1, CRC32C: make([]uint32, 160)}
		files, err := json.Marshal([]File{file})
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"sequence":1,"files":%s,"touched":%s}`, files, c.hint)
		data, err := encodeDocument(manifestFormat, ManifestVersion, json.RawMessage(body))
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseManifest(data)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := len(m.FirstTouched()); got != c.runs {
			t.Errorf("%s: %d runs are taken, want %d", what, got, c.runs)
		}
		checkHint(t, m)
	}
}

func TestFirstChunks(t *testing.T) {
	m := Manifest{
		Files:   []File{{Name: "a.img", Size: 1}, {Name: pagesFile, Size: 5 << 20}},
		Touched: Touched{{Page: 1279, Count: 1}, {Page: 255, Count: 2}, {Page: 256, Count: 1}, {Page: 0, Count: 700}},
	}
	if got := m.FirstChunks(); !slices.Equal(got, []int{4, 0, 1, 2}) {
		t.Errorf("%v", got)
	}
}

// What is found in a sandbox's memory is found in its next checkpoint, whatever was committed or freed before it.
func TestTouchedMoves(t *testing.T) {
	old, err := layoutOf(metaOf(PageRun{10, 5}, PageRun{100, 50}, PageRun{1000, 1000}))
	if err != nil {
		t.Fatal(err)
	}
	now, err := layoutOf(metaOf(PageRun{5, 3}, PageRun{12, 3}, PageRun{90, 500}, PageRun{1100, 10}, PageRun{1200, 800}))
	if err != nil {
		t.Fatal(err)
	}
	touched := Touched{{150, 10}, {3, 4}, {55, 2000}}
	memory := MemoryTouched(old.translate(touched, inImage, inMemory))
	if want := (MemoryTouched{{1095, 10}, {13, 2}, {100, 2}, {1000, 1000}}); !slices.Equal(memory, want) {
		t.Fatalf("in memory %v, want %v", memory, want)
	}
	// In the new one 1095 to 1099, and 1110 to 1199, are not there.
	got := Sealed{layout: now}.Touched(memory)
	if want := (Touched{{506, 5}, {4, 2}, {16, 2}, {511, 805}}); !slices.Equal(got, want) {
		t.Errorf("moved to %v, want %v", got, want)
	}
}

// translate and once do page by page what they say, and nothing else.
func TestTouchedOfAny(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var committed []PageRun
		var image []uint64 // pages in memory, as they are in pages.img
		for at := uint64(0); at < 300; {
			at += r.Uint64N(20)
			run := PageRun{at, 1 + r.Uint64N(20)}
			committed = append(committed, run)
			for ; at < run.end(); at++ {
				image = append(image, at)
			}
		}
		l, err := layoutOf(metaOf(committed...))
		if err != nil {
			t.Fatal(err)
		}
		var touched []PageRun
		for range r.IntN(20) {
			touched = append(touched, PageRun{r.Uint64N(400), 1 + r.Uint64N(30)})
		}
		var want []uint64
		for _, p := range each(touched) {
			if p < uint64(len(image)) {
				want = append(want, image[p])
			}
		}
		memory := l.translate(touched, inImage, inMemory)
		if got := each(memory); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
		var first []uint64
		for _, p := range each(touched) {
			if !slices.Contains(first, p) {
				first = append(first, p)
			}
		}
		if got := each(once(touched)); !slices.Equal(got, first) {
			t.Fatalf("seed %d: once %v, want %v", seed, got, first)
		}
	}
}

func each(runs []PageRun) (pages []uint64) {
	for _, r := range runs {
		for p := r.Page; p < r.end(); p++ {
			pages = append(pages, p)
		}
	}
	return pages
}

func TestTouchedIsBounded(t *testing.T) {
	got := once([]PageRun{{0, 10}, {0, 1 << 40}, {1 << 50, math.MaxUint64}})
	if len(got) != 1 || got[0] != (PageRun{0, MaxTouchedBytes / pageSize}) {
		t.Errorf("%v", got)
	}
	var many []PageRun
	for i := range uint64(2 * MaxTouched) {
		many = append(many, PageRun{3 * i, 1})
	}
	if got := once(many); len(got) != MaxTouched {
		t.Errorf("%d runs", len(got))
	}
}

// What is known of a wake goes with the memory into the next snapshot, before what was known of the wake before it.
func TestTouchedThroughACommit(t *testing.T) {
	l := open(t, t.TempDir())
	s := commitTouched(t, l, 32, func(Sealed) Touched { return Touched{{Page: 4, Count: 2}, {Page: 1, Count: 1}} })
	if got := s.Manifest().FirstTouched(); !slices.Equal(got, Touched{{4, 2}, {1, 1}}) {
		t.Fatalf("%v", got)
	}
	// The main memory file has 16 pages, and a hole of three pages after eight of them.
	memory, err := s.InMemory(Touched{{Page: 9, Count: 1}, {Page: 5, Count: 1}, {Page: 20, Count: 1}})
	if err != nil || !slices.Equal(memory, MemoryTouched{{12, 1}, {5, 1}, {4, 1}, {1, 1}}) {
		t.Fatalf("%v, %v", memory, err)
	}
	if memory, err := s.InMemory(Touched{{Page: 1 << 40, Count: 1}}); err != nil || !slices.Equal(memory, MemoryTouched{{4, 2}, {1, 1}}) {
		t.Errorf("of one that can't be: %v, %v", memory, err)
	}
	// Of 40 pages half are in the main one, and its hole is after ten of them.
	next := commitTouched(t, l, 40, func(sealed Sealed) Touched { return sealed.Touched(memory) })
	if got := next.Manifest().FirstTouched(); !slices.Equal(got, Touched{{5, 1}, {4, 1}, {1, 1}}) {
		t.Errorf("%v", got)
	}
	current, err := l.Current()
	if err != nil || !slices.Equal(current.Manifest().FirstTouched(), next.Manifest().FirstTouched()) {
		t.Errorf("%v", err)
	}
}

func commitTouched(t *testing.T, l *Local, n int, touched func(Sealed) Touched) *Snapshot {
	t.Helper()
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fakeCheckpoint(t, in.ImageDir(), pages(n, 1))
	sealed, err := in.Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := in.Commit(t.Context(), Manifest{Namespace: "default", ID: "c1", Touched: touched(sealed)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Exactly the chunks that are named come to be in memory, and the small files.
func TestReadAhead(t *testing.T) {
	l := open(t, t.TempDir())
	s := commitTouched(t, l, 20*ChunkSize/pageSize, func(Sealed) Touched {
		return Touched{{Page: 15 * 256, Count: 1}, {Page: 3*256 + 7, Count: 2}}
	})
	if err := s.Uncache(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.ImageDir(), pagesFile)
	if got := chunksInMemory(t, file); len(got) != 0 {
		t.Fatalf("chunks %v are still in memory", got)
	}
	if err := s.ReadAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(chunksInMemory(t, file)) < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // for the disk
	}
	if got := chunksInMemory(t, file); !slices.Equal(got, []int{3, 15}) {
		t.Errorf("chunks %v are in memory", got)
	}
	for _, small := range []string{stateFile, pagesMetaFile} {
		if !cached(t, filepath.Join(s.ImageDir(), small)) {
			t.Errorf("%s is not in memory", small)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadAhead(t.Context()); err == nil {
		t.Error("a file that is gone is read")
	}
}

// chunksInMemory are those of which all pages are.
func chunksInMemory(t *testing.T, path string) (in []int) {
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
	there := make([]byte, len(mapped)/pageSize)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(len(mapped)), uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		t.Fatal(errno)
	}
	const per = ChunkSize / pageSize
	for c := range len(there) / per {
		if !slices.ContainsFunc(there[c*per:(c+1)*per], func(b byte) bool { return b&1 == 0 }) {
			in = append(in, c)
		}
	}
	return in
}

package gofer

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

const good = `{"Version":1,"Status":"/s","Directory":"/image","ChunkSize":1048576,"Parallel":2,"Files":[{"Name":"pages.img","Size":5,"CRC32C":[7]}]}`

func TestOptions(t *testing.T) {
	o, err := readOptions(strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := o.file("pages.img"); err != nil || f.Size != 5 || f.CRC32C[0] != 7 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := o.file("../pages.img"); err == nil {
		t.Error("a file that is not named is served")
	}
	for what, change := range map[string][2]string{
		"another version": {`"Version":1`, `"Version":2`},
		"an unknown key":  {`"Parallel":2`, `"Parallel":2,"More":1`},
		"a relative path": {`"/image"`, `"image"`},
		"no reads":        {`"Parallel":2`, `"Parallel":0`},
		"an odd chunk":    {`1048576`, `1000`},
		"no files":        {`"Files":[`, `"Files":[],"x":[`},
	} {
		if _, err := readOptions(strings.NewReader(strings.Replace(good, change[0], change[1], 1))); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// A hint is a hint: what it says wrongly is left out.
func TestFirst(t *testing.T) {
	o, err := readOptions(strings.NewReader(strings.Replace(good, `"Files"`, `"First":[2,-1,0,2,1000000000000,3,1],"Record":"/r","Files"`, 1)))
	if err != nil || o.Record != "/r" {
		t.Fatal(o, err)
	}
	if got := o.first(pages.File{CRC32C: make([]uint32, 3)}); !slices.Equal(got, []int{2, 0, 1}) {
		t.Errorf("%v", got)
	}
	o.First = make([]int, 1<<20)
	for i := range o.First {
		o.First[i] = i
	}
	if got := o.first(pages.File{CRC32C: make([]uint32, 1<<20)}); len(got) > maxTouches {
		t.Errorf("%d chunks", len(got))
	}
}

// The first end of the load is told, and no other.
func TestStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := openStatus(path)
	if err != nil {
		t.Fatal(err)
	}
	s.tell(event{Event: "started"})
	s.fail("pages.img", &pages.CorruptError{File: "pages.img", Chunk: 3})
	s.fail("pages.img", errors.New("later"))
	s.tell(event{Event: "loaded"})
	if err := s.fifo.Close(); err != nil {
		t.Fatal(err)
	}
	var got []event
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if len(got) != 2 || got[0].Event != "started" || got[1].Event != "failed" || !got[1].Corrupt || got[1].Chunk != 3 {
		t.Errorf("told %+v", got)
	}
}

// A shim that is gone is no reason not to serve.
func TestStatusOfNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openStatus(path)
	if err != nil {
		t.Fatal(err)
	}
	s.tell(event{Event: "started"})
}

// What is read ahead is bounded by what it may take of the workload's memory, and comes from the node itself.
func TestAhead(t *testing.T) {
	const chunk = 1 << 20
	for _, c := range []struct {
		size int64
		only []string
		want int
	}{{31 * chunk, nil, 0}, {1024 * chunk, nil, 32}, {8192 * chunk, nil, 64}, {1024 * chunk, []string{"pages.img"}, 0}} {
		s := &server{options: options{ChunkSize: chunk, Remote: &remote{Only: c.only}}}
		for i := range 100 {
			s.First = append(s.First, 2*i)
		}
		got := s.ahead(pages.File{Name: "pages.img", Size: c.size, CRC32C: make([]uint32, c.size/chunk)})
		if len(got) != c.want || c.want > 1 && got[1] != 2 {
			t.Errorf("%d MiB, elsewhere alone %v: %v", c.size/chunk, c.only, got)
		}
	}
}

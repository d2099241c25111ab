package durable

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"slices"
	"testing"
)

// allocates fails the test when do takes more memory than limit allows.
func allocates(t *testing.T, limit uint64, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > limit {
		t.Errorf("%d bytes were allocated, at most %d should be", got, limit)
	}
}

// A head is read or refused, whatever it is, and what was read is written as something that is read the same.
func FuzzHead(f *testing.F) {
	w := newWorld(f)
	n := w.owner("a")
	n.commit(f, w.image(1, 1, checkpoint(memory(10, 1))))
	f.Add(w.bucket.Body(headObject))
	f.Add([]byte(`{"format":"hibernate.durable-head","version":1,"mac":"00","body":{"rev":1}}`))
	f.Add([]byte(`{"format":"hibernate.durable-head","version":9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		allocates(t, 1<<20+100*uint64(len(data)), func() {
			p, err := parseHead(testName, data)
			if err != nil {
				return
			}
			_ = p.verify(testName, n.keys)
			_, _ = p.Newest()
		})
		if p, err := parseHead(testName, data); err == nil {
			again, err := encodeHead(testName, p.Head, n.keys)
			if err != nil {
				t.Fatal(err)
			}
			q, err := parseHead(testName, again)
			if err != nil {
				t.Fatalf("%v: %s", err, again)
			}
			if err := q.verify(testName, n.keys); (err == nil) != (q.Lineage == n.keys.lineage.String()) {
				t.Fatal(err)
			}
		}
	})
}

func testManifest(k *keys) *manifest {
	name := objectName{kind: packKind, epoch: 1, sequence: 1, op: operation{1}}
	p := pack{Name: name.String(), Salt: hex.EncodeToString(make([]byte, 32)), SHA256: hex.EncodeToString(make([]byte, 32)), Pages: 70, Frames: []int{1000, 500}}
	p.Size = headerLength + 1500 + int64(p.indexLength())
	return &manifest{
		Name: testName, Lineage: k.lineage.String(), Sequence: 1, Epoch: 1, Packs: []pack{p}, document: []byte("{}"),
		Files: []file{{Name: "a", Size: 60*pageSize - 7, Root: "x", extents: []extent{{0, 40, 0, 30}, {40, 10, zeros, 0}, {50, 10, 0, 0}}}, {Name: "b", extents: []extent{}}},
	}
}

// A manifest's plaintext is read or refused, whatever it is; what was read has all pages where a pack has some.
func FuzzManifest(f *testing.F) {
	k := newKeys()
	plain, err := testManifest(k).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add(append(slices.Clone(plain), 200, 1, 0))
	f.Add(append(slices.Clone(plain), 5, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *manifest
		allocates(t, 1<<20+200*uint64(len(data)), func() { m, err = decodeManifest("m", data) })
		if err != nil {
			return
		}
		for i := range m.Files {
			x := &m.Files[i]
			page := int64(0)
			for _, e := range x.extents {
				if e.page != page || e.count < 1 || e.pack != zeros && (e.slot < 0 || int64(e.slot)+e.count > int64(m.Packs[e.pack].Pages)) {
					t.Fatalf("extent %+v at page %d", e, page)
				}
				page += e.count
			}
			if page != pagesOf(x.Size) {
				t.Fatalf("%d pages of %d bytes", page, x.Size)
			}
			if x.Size > 0 && x.Size < 1<<20 {
				for _, q := range x.pieces(make([]byte, x.Size), 0) {
					if q.frame.pack != zeros && q.from+len(q.to) > m.Packs[q.frame.pack].pagesIn(int(q.frame.frame))*pageSize {
						t.Fatalf("a piece of %d bytes from %d of frame %v", len(q.to), q.from, q.frame)
					}
				}
			}
		}
		_ = m.fetch()
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeManifest("m", again); err != nil {
			t.Fatal(err)
		}
	})
}

// A frame's plaintext gives as many pages as it should have, or is refused; an object's header is the one that it must be.
func FuzzFrame(f *testing.F) {
	c, err := newCodec()
	if err != nil {
		f.Fatal(err)
	}
	k := newKeys()
	name := objectName{kind: packKind, epoch: 1, sequence: 1, op: operation{1}}
	f.Add(c.encode(nil, memory(3, 1)), 3)
	f.Add(c.encode(nil, bytes.Repeat([]byte{1}, frameSize)), 64)
	f.Add(append([]byte{rawFrame}, memory(1, 2)...), 1)
	o := newObject(k, name)
	f.Add(o.header[:], 1)
	f.Add([]byte{3}, 1<<40)
	f.Fuzz(func(t *testing.T, data []byte, count int) {
		buf := new([frameSize]byte)
		allocates(t, 4<<20, func() { // a decoder of zstd has tables of its own
			if pages, err := c.decode(buf, slices.Clone(data), count); err == nil && len(pages) != count*pageSize {
				t.Fatalf("%d bytes, want %d pages", len(pages), count)
			}
		})
		if _, err := o.open(slices.Clone(data), 0, false); err == nil {
			t.Fatal("a frame that nobody has encrypted is opened")
		}
		if p, err := openHeader(k, name, data); err == nil && !bytes.Equal(p.header[:], data[:headerLength]) {
			t.Fatal("another header is taken")
		}
		p := pack{Name: name.String(), Pages: max(1, min(count, packPages)), Frames: []int{1}}
		if _, err := decodeHashes(&p, o, slices.Clone(data)); err == nil {
			t.Fatal("hashes that nobody has encrypted are taken")
		}
	})
}

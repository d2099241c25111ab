package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// fakeCheckpoint writes what runsc would, with the given committed pages in
// the main memory file and one private one.
func fakeCheckpoint(t testing.TB, dir string, content []byte) {
	t.Helper()
	if len(content)%pageSize != 0 {
		t.Fatal("content is not made of pages")
	}
	main := uint64(len(content)) / pageSize / 2 * pageSize
	meta := slices.Concat(
		memoryFileBytes(main, 3*pageSize),
		graphBytes(),
		memoryFileBytes(uint64(len(content))-main, 0),
	)
	put(t, dir, pagesMetaFile, meta)
	put(t, dir, stateFile, stateBytes(graphBytes(), graphBytes()))
	put(t, dir, pagesFile, content)
}

func put(t testing.TB, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// memoryFileBytes describes a memory file with a hole of uncommitted bytes in
// its middle.
func memoryFileBytes(committed, hole uint64) []byte {
	var msg []byte
	msg = protowire.AppendTag(msg, fieldVersion, protowire.VarintType)
	msg = protowire.AppendVarint(msg, protoVersion1)
	first := committed / 2 / pageSize * pageSize
	for _, r := range []acctRange{{0, first, true}, {first, first + hole, false}, {first + hole, committed + hole, true}} {
		if r.start < r.end {
			msg = protowire.AppendTag(msg, fieldMemAcct, protowire.BytesType)
			msg = protowire.AppendBytes(msg, rangeBytes(r))
		}
	}
	msg = protowire.AppendTag(msg, 99, protowire.Fixed64Type) // of a newer gVisor
	msg = protowire.AppendFixed64(msg, 7)
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(msg))), msg...)
}

func rangeBytes(r acctRange) []byte {
	var b []byte
	b = protowire.AppendTag(b, fieldStart, protowire.VarintType)
	b = protowire.AppendVarint(b, r.start)
	b = protowire.AppendTag(b, fieldEnd, protowire.VarintType)
	b = protowire.AppendVarint(b, r.end)
	if r.known {
		b = protowire.AppendTag(b, fieldKnown, protowire.VarintType)
		b = protowire.AppendVarint(b, 1)
	}
	return b
}

// graphBytes is a graph with one type and two objects: a struct of a string
// and a slice, and an array of three strings.
func graphBytes() []byte {
	u := func(vs ...uint64) []byte {
		var b []byte
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	s := func(v string) []byte { return append(u(uint64(len(v))), v...) }
	return slices.Concat(
		u(objectFlag|2),
		u(tagType), s("pkg.Thing"), u(2), s("name"), s("list"),
		u(tagUint, 1),
		u(tagStruct, 1, tagMultipleObjects, 2, tagString), s("hello"),
		u(tagSlice, 3, 4, 2, 1, 6 /* index 3 */, 3, 0, 1),
		u(tagUint, 2),
		u(tagArray, 3, tagString), s("a"), s("bc"), s(""),
	)
}

func stateBytes(graphs ...[]byte) []byte {
	meta, _ := json.Marshal(map[string]string{"compression": "none", "runsc_version": "test"})
	head := append([]byte(nil), stateMagic...)
	head = binary.BigEndian.AppendUint64(head, uint64(len(meta)))
	return slices.Concat(append([][]byte{head, meta}, graphs...)...)
}

// pages makes n pages whose bytes depend on seed.
func pages(n int, seed byte) []byte {
	b := make([]byte, n*pageSize)
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i*7) ^ seed
	}
	return b
}

func open(t testing.TB, dir string, opts ...Option) *Local {
	t.Helper()
	l, err := OpenLocal(dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// take commits one snapshot with the content and returns it.
func take(t testing.TB, l *Local, content []byte) *Snapshot {
	t.Helper()
	s, err := tryTake(t, l, content)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryTake(t testing.TB, l *Local, content []byte) (*Snapshot, error) {
	t.Helper()
	in, err := l.Begin(t.Context())
	if err != nil {
		return nil, err
	}
	fakeCheckpoint(t, in.ImageDir(), content)
	if _, err := in.Seal(t.Context()); err != nil {
		return nil, err
	}
	return in.Commit(t.Context(), Manifest{Namespace: "default", ID: "c1"})
}

// sameContent fails unless s is intact and holds content.
func sameContent(t testing.TB, s *Snapshot, content []byte) {
	t.Helper()
	if err := s.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(s.ImageDir(), pagesFile))
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("content differs (%d bytes, %v)", len(got), err)
	}
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// tree lists everything below dir but the lock and what is in the trash.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(dir, path); rel != "." && rel != lockFile {
			out = append(out, rel)
		}
		if d.Name() == trashDir {
			return fs.SkipDir // It is being emptied.
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

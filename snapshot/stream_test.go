package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// sent is a snapshot as bytes.
func sent(t *testing.T, s *Snapshot) (document, files []byte) {
	t.Helper()
	stream, err := s.Stream()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var all bytes.Buffer
	if err := stream.Send(t.Context(), func(p []byte) error { all.Write(p); return nil }); err != nil {
		t.Fatal(err)
	}
	if stream.Size() != int64(all.Len()) {
		t.Errorf("%d bytes, want %d", all.Len(), stream.Size())
	}
	return stream.Document(), all.Bytes()
}

func receive(t *testing.T, document []byte, from io.Reader) (*Snapshot, string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "r")
	r, err := NewReceiving(dir, document)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Take(t.Context(), from, func(int64) {})
	return s, dir, err
}

func takeUnder(t *testing.T, l *Local, content []byte, epoch uint64) *Snapshot {
	t.Helper()
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fakeCheckpoint(t, in.ImageDir(), content)
	if _, err := in.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := in.Commit(t.Context(), Manifest{Namespace: "default", ID: "ca", Identity: "db", Epoch: epoch})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What one node sends, another one takes in as it was: number, epoch, lineage, and bytes. What it had before is gone, or set aside.
func TestSendAndReceive(t *testing.T) {
	content := pages(700, 3)
	a := open(t, filepath.Join(t.TempDir(), "a"), WithOwner("default", "ca", "db"))
	a.Under(4, 6)
	from := takeUnder(t, a, content, 4)
	document, files := sent(t, from)
	got, dir, err := receive(t, document, bytes.NewReader(files))
	if err != nil {
		t.Fatal(err)
	}

	for name, before := range map[string]struct {
		sequences   int
		quarantined int
	}{"nothing before": {0, 0}, "an older one before": {2, 0}, "one with a higher number before": {9, 1}} {
		t.Run(name, func(t *testing.T) {
			b := open(t, filepath.Join(filepath.Dir(dir), "b-"+name), WithOwner("default", "cb", "db"))
			for range before.sequences {
				take(t, b, pages(4, 1))
			}
			b.Under(5, 0)
			for range 2 { // once more is no error
				s, err := b.Receive(t.Context(), got)
				if err != nil || s.Sequence() != 7 || !s.Manifest().Same(from.Manifest()) {
					t.Fatalf("%+v, %v", s, err)
				}
				sameContent(t, s, content)
			}
			h, err := b.Head()
			if err != nil || h.State != Asleep || h.Sequence != 7 || h.Epoch != 5 || h.ID != "cb" || h.Lineage != from.Manifest().Lineage {
				t.Errorf("%+v, %v", h, err)
			}
			if q, err := b.Quarantined(); err != nil || len(q) != before.quarantined {
				t.Errorf("%v, %v", q, err)
			}
			text, err := os.ReadFile(filepath.Join(b.Dir(), "7", manifestFile))
			if err != nil || !bytes.Equal(text, document) {
				t.Errorf("another manifest: %v", err)
			}
			next := takeUnder(t, b, pages(4, 2), 5)
			if want := uint64(max(8, before.sequences+1)); next.Sequence() != want {
				t.Errorf("the next is %d, want %d", next.Sequence(), want)
			}
		})
	}
	if again, err := OpenReceived(dir); err != nil || again.Sequence() != 7 {
		t.Errorf("what came is gone: %v", err)
	}
}

// What is newer than what comes is not replaced by it.
func TestReceiveOlder(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "a"))
	document, files := sent(t, take(t, a, pages(4, 1)))
	got, _, err := receive(t, document, bytes.NewReader(files))
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, filepath.Join(t.TempDir(), "b"))
	take(t, b, pages(4, 2))
	take(t, b, pages(4, 3))
	if _, err := b.Receive(t.Context(), got); !errors.Is(err, ErrEpoch) {
		t.Errorf("%v", err)
	}
	if h, err := b.Head(); err != nil || h.Sequence != 2 {
		t.Errorf("%+v, %v", h, err)
	}
}

// What is cut or changed on the way is found, and nothing is left of it.
func TestReceiveDamaged(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "a"))
	document, files := sent(t, take(t, a, pages(700, 1)))
	changed := bytes.Clone(files)
	changed[len(changed)/2] ^= 1
	for want, from := range map[error][]byte{ErrCorrupt: changed, io.ErrUnexpectedEOF: files[:len(files)-1]} {
		_, dir, err := receive(t, document, bytes.NewReader(from))
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something is left: %v", err)
		}
	}
}

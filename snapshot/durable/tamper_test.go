package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Whatever is done to an object is found, told as what it is, and nothing of it is restored; the generation before is.
func TestTampering(t *testing.T) {
	older, newer := checkpoint(memory(1000, 1)), checkpoint(memory(1000, 2))
	// Two full uploads share nothing.
	build := func(t *testing.T) (w *world, n node, packs, manifests []string) {
		w = newWorld(t)
		n = w.owner("a")
		n.commit(t, w.image(1, 1, older))
		if _, err := n.Commit(t.Context(), w.image(1, 2, newer), CommitOptions{Full: true}); err != nil {
			t.Fatal(err)
		}
		return w, n, w.data("p/"), w.data("m/")
	}
	alter := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(len(b)+at)%len(b)] ^= 4; return b }
	}
	version := func(b []byte) []byte { binary.LittleEndian.PutUint16(b[8:], 2); return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	gone := func([]byte) []byte { return nil }
	for _, c := range []struct {
		what   string
		of     string // pack or manifest of generation 2
		change func([]byte) []byte
		want   error
		say    string
	}{
		{"a bit of a frame", "pack", alter(5000), snapshot.ErrCorrupt, "not what was written"},
		{"a bit of the last frame", "pack", alter(-16*1050 - 50), snapshot.ErrCorrupt, "not what was written"},
		{"truncated", "pack", half, snapshot.ErrTruncated, "ends before"},
		{"another version", "pack", func(b []byte) []byte { return alter(5000)(version(b)) }, snapshot.ErrVersion, "upgrade"},
		{"gone", "pack", gone, store.ErrNotFound, ""},
		{"exchanged", "pack", nil, ErrForeign, "exchanged"},
		{"a bit of the body", "manifest", alter(200), snapshot.ErrCorrupt, "SHA-256"},
		{"a bit of the salt", "manifest", alter(80), snapshot.ErrCorrupt, "SHA-256"},
		{"a bit of the magic", "manifest", alter(2), snapshot.ErrCorrupt, "begin"},
		{"a bit of the operation", "manifest", alter(40), ErrForeign, "exchanged or changed"},
		{"truncated", "manifest", half, snapshot.ErrTruncated, "want"},
		{"cut in the header", "manifest", func(b []byte) []byte { return b[:50] }, snapshot.ErrTruncated, "header"},
		{"another version", "manifest", version, snapshot.ErrVersion, "upgrade"},
		{"gone", "manifest", gone, store.ErrNotFound, ""},
		{"exchanged", "manifest", nil, ErrForeign, "exchanged"},
	} {
		t.Run(c.of+" "+c.what, func(t *testing.T) {
			w, n, packs, manifests := build(t)
			objects := map[string][]string{"pack": packs, "manifest": manifests}[c.of]
			change := c.change
			if change == nil {
				other := w.bucket.Body(full(objects[0]))
				change = func([]byte) []byte { return other }
			}
			w.bucket.Alter(full(objects[1]), change)
			before := w.bucket.Names()
			_, err := n.restored(t.Context(), t, 2)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("restore: %v, want %v that says %q", err, c.want, c.say)
			}
			if err := n.verify2(t); err == nil {
				t.Error("verify finds nothing")
			}
			if err := n.readAll(t, 2); !errors.Is(err, c.want) {
				t.Errorf("ReadAt: %v, want %v", err, c.want)
			}
			n.has(t, 1, older)
			w.pass(2 * n.t.cfg.Grace)
			if c.of == "manifest" {
				if _, err := n.Collect(t.Context(), CollectOptions{}); err == nil || !strings.Contains(err.Error(), "nothing was deleted") {
					t.Errorf("collect: %v", err)
				}
			}
			if got := w.bucket.Names(); !slices.Equal(got, before) {
				t.Errorf("something was deleted: %q of %q", got, before)
			}
			// The next upload doesn't rely on what is broken.
			if !errors.Is(c.want, snapshot.ErrVersion) {
				r := n.commit(t, w.image(1, 3, newer))
				if len(r.Damaged) == 0 && !strings.Contains(c.what, "frame") {
					t.Errorf("result %+v", r)
				}
				if !strings.Contains(c.what, "frame") { // its hashes are as they were
					n.has(t, 3, newer)
				}
			}
		})
	}
}

func (n node) verify2(t *testing.T) error {
	r, err := n.Open(t.Context(), 2, OpenOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Verify(t.Context(), nil)
}

func (n node) readAll(t *testing.T, sequence uint64) error {
	r, err := n.Open(t.Context(), sequence, OpenOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	for _, f := range r.Manifest().Files {
		file, err := r.File(f.Name)
		if err != nil {
			return err
		}
		if _, err := file.ReadAt(make([]byte, f.Size), 0); err != nil {
			return err
		}
	}
	return nil
}

// A head that was changed, exchanged, put back, deleted, or written by a newer program is no head.
func TestHeadTampering(t *testing.T) {
	type objects struct{ first, last, others []byte }
	head := headsPrefix + testName
	for _, c := range []struct {
		what   string
		change func(o objects) []byte
		want   error
		say    string
	}{
		{"a changed epoch", func(o objects) []byte {
			return bytes.Replace(o.last, []byte(`"epoch":1,"state"`), []byte(`"epoch":9,"state"`), 1)
		}, snapshot.ErrCorrupt, "nobody"},
		{"a flipped bit", func(o objects) []byte { o.last[len(o.last)/2] ^= 1; return o.last }, snapshot.ErrCorrupt, ""},
		{"truncated", func(o objects) []byte { return o.last[:len(o.last)-30] }, snapshot.ErrCorrupt, "JSON"},
		{"another workload's", func(o objects) []byte { return o.others }, snapshot.ErrCorrupt, "another workload"},
		{"put back", func(o objects) []byte { return o.first }, ErrRolledBack, "nothing is restored"},
		{"deleted", func(objects) []byte { return nil }, ErrRolledBack, "nothing is restored"},
		{"of a newer version", func(o objects) []byte {
			return bytes.Replace(o.last, []byte(`"version":1`), []byte(`"version":2`), 1)
		}, snapshot.ErrVersion, "upgrade"},
		{"without its key", func(o objects) []byte {
			return append(append(bytes.Clone(o.last[:bytes.Index(o.last, []byte(`"key"`))]), `"k":`...), o.last[bytes.Index(o.last, []byte(`"key"`))+6:]...)
		}, snapshot.ErrCorrupt, "key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			n := w.owner("a")
			first := w.bucket.Body(head)
			n.commit(t, w.image(1, 1, checkpoint(memory(10, 1))))
			other, _ := n.t.Lineage("default/other")
			if _, err := other.Acquire(t.Context(), Claim{}); err != nil {
				t.Fatal(err)
			}
			o := objects{first, w.bucket.Body(head), w.bucket.Body(headsPrefix + "default/other")}
			w.bucket.Alter(head, func([]byte) []byte { return c.change(o) })
			names := w.bucket.Names()
			for what, err := range map[string]error{
				"head":    func() error { _, err := n.Head(t.Context()); return err }(),
				"acquire": func() error { _, err := n.Acquire(t.Context(), Claim{}); return err }(),
				"open":    func() error { _, err := n.Open(t.Context(), 1, OpenOptions{}); return err }(),
				"collect": func() error { _, err := n.Collect(t.Context(), CollectOptions{}); return err }(),
			} {
				if !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", what, err, c.want)
				}
			}
			if _, err := n.Head(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), c.say) && !strings.Contains(fmt.Sprint(err), "not written by anybody") {
				t.Errorf("%v, want it to say %q", err, c.say)
			}
			if !slices.Equal(names, w.bucket.Names()) {
				t.Error("something was changed")
			}
		})
	}
}

// A node that has never seen the lineage knows from its local tier what it must have come to.
func TestRemembered(t *testing.T) {
	w := newWorld(t)
	n := w.owner("a")
	first := w.bucket.Body(headsPrefix + testName)
	n.commit(t, w.image(1, 1, checkpoint(memory(10, 1))))
	b := w.node("b")
	b.Remember(1, 1)
	if _, err := b.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.bucket.Alter(headsPrefix+testName, func([]byte) []byte { return first })
	c := w.node("c")
	if _, err := c.Head(t.Context()); err != nil {
		t.Errorf("nothing is known: %v", err)
	}
	c.Remember(1, 1)
	if _, err := c.Head(t.Context()); !errors.Is(err, ErrRolledBack) {
		t.Errorf("head: %v", err)
	}
}

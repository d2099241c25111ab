package upload

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// TestTampered: a head that was put back, taken away, exchanged, changed or is of a newer version has an error of its own that says what to do;
// nothing is uploaded over it, and nothing deleted, by an upload or a collection.
func TestTampered(t *testing.T) {
	for _, tc := range []struct {
		name  string
		alter func(first, last, other []byte) []byte
		is    error
		words []string
	}{
		{"put back", func(first, _, _ []byte) []byte { return first }, durable.ErrRolledBack, []string{"somebody has put an old one back", "nothing is restored"}},
		{"taken away", func(_, _, _ []byte) []byte { return nil }, durable.ErrRolledBack, []string{"lost writes"}},
		{"another workload's", func(_, _, other []byte) []byte { return other }, snapshot.ErrCorrupt, []string{"another workload", "restore it from a version"}},
		{"changed", func(_, last, _ []byte) []byte { return bytes.Replace(last, []byte(`"next":3`), []byte(`"next":2`), 1) }, snapshot.ErrCorrupt, nil},
		{"cut short", func(_, last, _ []byte) []byte { return last[:len(last)/2] }, snapshot.ErrCorrupt, []string{"not a JSON document"}},
		{"of a newer version", func(_, last, _ []byte) []byte {
			return bytes.Replace(last, []byte(`"version":1`), []byte(`"version":2`), 1)
		}, snapshot.ErrVersion, []string{"upgrade"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, d, name := slept(t, 1)
			w.sleep("other", 1, memory(10, 77))
			other := "heads/" + w.uploaded(d, "other", 1).Name
			head := "heads/" + name
			first := bytes.Clone(w.bucket.Body(head))
			w.sleep("web", 2, memory(100, 2))
			w.uploaded(d, "web", 2)
			others := w.bucket.Body(other)
			w.bucket.Alter(head, func(last []byte) []byte { return tc.alter(first, last, others) })
			spoilt, before := bytes.Clone(w.bucket.Body(head)), w.bucket.Names()
			for range 2 { // the daemon that has seen it, and the next one
				w.sleep("web", 3, memory(100, 3))
				var c Copies
				w.eventually("an upload fails", func() bool { c, _ = d.Copies(key("web")); return c.Err != nil })
				wantError(t, c.Err, tc.is, tc.words...)
				if c.Since.IsZero() {
					t.Error("it is told as uploaded")
				}
				_ = d.Collect(t.Context(), name, false, func(c Collected) error {
					if c.Err == nil {
						t.Error("a collection finds nothing wrong")
					}
					return nil
				})
				if !bytes.Equal(w.bucket.Body(head), spoilt) {
					t.Errorf("it was written over: %s", w.bucket.Body(head))
				}
				for _, n := range before {
					if !slices.Contains(w.bucket.Names(), n) && !strings.Contains(n, "/l/") {
						t.Errorf("%s is gone", n)
					}
				}
				d.stop()
				d = w.daemon()
				w.eventually("it is open", d.isOpen)
			}
		})
	}
}

package upload

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// keyFile is a key of 32 equal bytes.
func keyFile(t *testing.T, b byte) durable.KeyWrapper {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, bytes.Repeat([]byte{b}, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := durable.KeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestRotation: a rotation that is cut in the middle goes on; then the older key is no longer needed, and nothing but heads was written.
func TestRotation(t *testing.T) {
	const lineages = 7
	older, current := keyFile(t, 1), keyFile(t, 2)
	keys := func(r durable.Keyring) func(*Options) { return func(o *Options) { o.Keys = r } }
	w := newWorld(t)
	d := w.daemon(keys(durable.Keyring{Current: older}))
	for n := range lineages {
		id := fmt.Sprint("web", n)
		w.sleep(id, 1, memory(20, byte(n)))
		w.uploaded(d, id, 1)
	}
	d.stop()
	before := make(map[string]string)
	for _, n := range w.bucket.Names() {
		before[n] = string(w.bucket.Body(n))
	}

	d = w.daemon(keys(durable.Keyring{Current: current, Older: []durable.KeyWrapper{older}}))
	w.eventually("it is told how many need the older key", func() bool {
		return strings.Contains(w.log.String(), fmt.Sprintf("needing=%d", lineages))
	})
	dry := 0
	w.must(d.Rewrap(t.Context(), "", true, func(r Rewrapped) error {
		if r.Err == nil && !r.Already && r.From == older.ID() && r.To == current.ID() {
			dry++
		}
		return nil
	}))
	if dry != lineages {
		t.Errorf("%d are to be done", dry)
	}
	// The daemon dies with its fourth write; whether that came to the store nobody knows.
	writes := 0
	d.store.Before(func(op memstore.Op, name string) memstore.Fault {
		if op == memstore.Put && strings.HasPrefix(name, "heads/") {
			if writes++; writes > 4 {
				return memstore.Fault{Kind: memstore.Fail, Err: store.ErrRefused}
			} else if writes == 4 {
				return memstore.Fault{Kind: memstore.LoseAnswer}
			}
		}
		return memstore.Fault{}
	})
	var left []int
	failed := 0
	w.must(d.Rewrap(t.Context(), "", false, func(r Rewrapped) error {
		left = append(left, r.Left)
		if r.Err != nil {
			failed++
		}
		return nil
	}))
	if !slices.Equal(left, []int{6, 5, 4, 3, 2, 1, 0}) || failed != lineages-4 && failed != lineages-3 {
		t.Errorf("left %d, failed %d", left, failed)
	}
	d.stop()

	only := w.daemon(keys(durable.Keyring{Current: current})) // too early
	w.eventually("it is open", only.isOpen)
	all, err := only.List(t.Context(), "")
	w.must(err)
	closed := 0
	for _, l := range all {
		if errors.Is(l.Err, durable.ErrWrongKey) {
			closed++
			wantError(t, l.Err, durable.ErrWrongKey, older.ID(), "configure that key, too")
		}
	}
	if closed == 0 || closed == lineages {
		t.Errorf("%d need the older key in the middle", closed)
	}
	only.stop()

	d = w.daemon(keys(durable.Keyring{Current: current, Older: []durable.KeyWrapper{older}}))
	w.eventually("it is open", d.isOpen)
	done := 0
	w.must(d.Rewrap(t.Context(), "", false, func(r Rewrapped) error {
		if r.Err == nil && !r.Already {
			done++
		}
		return r.Err
	}))
	if done != closed {
		t.Errorf("%d were done, %d had been left", done, closed)
	}
	d.stop()
	d = w.daemon(keys(durable.Keyring{Current: current}))
	w.eventually("it is open", d.isOpen)
	for n := range lineages {
		_, _, err := d.Verify(t.Context(), fmt.Sprint("web", n), 0, nil)
		w.must(err)
	}
	for n, body := range before {
		if same := string(w.bucket.Body(n)) == body; same == strings.HasPrefix(n, "heads/") {
			t.Errorf("%s: the same as before: %v", n, same)
		}
	}
	for _, n := range w.bucket.Names() {
		if before[n] == "" && strings.Contains(n, "/p/") {
			t.Errorf("%s is new", n)
		}
	}
	w.sleep("web0", 2, memory(20, 100)) // goes on under the new key
	w.uploaded(d, "web0", 2)
}

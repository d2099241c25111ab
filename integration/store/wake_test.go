package store

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// stores are those that a wake is tried with.
func eachStore(t *testing.T, run func(t *testing.T, n *node, settings map[string]string)) {
	t.Run("directory", func(t *testing.T) {
		n := newNode(t)
		dir := filepath.Join(n.Dir, "kept")
		n.must(os.Mkdir(dir, 0o700))
		run(t, n, map[string]string{"store": strconv.Quote("file://" + dir)})
	})
	t.Run("s3", func(t *testing.T) {
		s := newS3(t)
		run(t, s.node, s.settings(s.bucket, "right"))
	})
}

// local is the directory of a workload in the local tier.
func (n *node) local(id string) string {
	n.t.Helper()
	heads, err := filepath.Glob(n.Path(filepath.Join(n.DataDir(), n.Name, "*", "head.json")))
	n.must(err)
	for _, h := range heads {
		data, err := os.ReadFile(h)
		n.must(err)
		if strings.Contains(string(data), `"id":"`+id+`"`) {
			return filepath.Dir(h)
		}
	}
	n.t.Fatalf("%s has no directory", id)
	return ""
}

// spoil changes a byte of one of the files of the node's snapshot.
func (n *node) spoil(id string, sequence int, file string, at int64) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.local(id), strconv.Itoa(sequence), "image", file), os.O_RDWR, 0)
	n.must(err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	n.must(err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	n.must(err)
}

// wokenAs looks how the last wake ended.
func (n *node) wokenAs(s *known.Server, outcome string, words ...string) {
	n.t.Helper()
	s.Awake()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	w := now.GetLastWake()
	if w.GetOutcome() != outcome {
		n.t.Fatalf("woken as %s, want %s: %s", w.GetOutcome(), outcome, w.GetDetail())
	}
	n.says(w.GetDetail(), words...)
	var steps []string
	for _, s := range w.GetSteps() {
		steps = append(steps, s.GetName()+" "+strconv.FormatFloat(s.GetMs(), 'f', 1, 64))
	}
	n.t.Logf("%s in %.1f ms: %s", outcome, w.GetTotalMs(), strings.Join(steps, ", "))
}

// TestWakesFromTheStore: a sleeper whose snapshot on the node is gone or damaged goes on as it was, again and again.
func TestWakesFromTheStore(t *testing.T) {
	eachStore(t, func(t *testing.T, n *node, settings map[string]string) {
		n.restart(settings)
		web := n.server("web", 24)
		sequence := 0
		for _, c := range []struct {
			what  string
			harm  func()
			words []string
		}{
			{"the pages are gone", func() {
				n.must(os.Remove(filepath.Join(n.local("web"), strconv.Itoa(sequence), "image", "pages.img")))
			}, []string{"came from the store", "pages.img"}},
			{"the snapshot is gone", func() { n.must(os.RemoveAll(filepath.Join(n.local("web"), strconv.Itoa(sequence)))) },
				[]string{"came from the store", "no snapshot"}},
			{"the state is damaged", func() { n.spoil("web", sequence, "checkpoint.img", 5000) }, []string{"came from the store", "checkpoint.img"}},
			{"the manifest is damaged", func() {
				n.must(os.WriteFile(filepath.Join(n.local("web"), strconv.Itoa(sequence), "manifest.json"), []byte("{}"), 0o600))
			}, []string{"came from the store", "manifest.json"}},
		} {
			web.Sleep()
			sequence++
			n.stored("web", sequence)
			c.harm()
			web.GoesOn()
			n.wokenAs(web, "restored", c.words...)
		}
	})
}

var _ = harness.Container{}

package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// damages are what may become of a snapshot while its container sleeps.
var damages = map[string]struct {
	file   string
	damage func(data []byte) []byte // nil: the file is removed
}{
	"flipped byte": {"pages.img", flip},
	"truncated":    {"pages.img", func(b []byte) []byte { return b[:len(b)-4096] }},
	"no manifest":  {"manifest.json", nil},
	"torn head":    {"head.json", func(b []byte) []byte { return b[:len(b)/2] }},
}

func flip(b []byte) []byte { b[len(b)/2] ^= 1; return b }

// A damaged snapshot is never restored. Where the policy is to go on it is set aside, the container starts afresh and says
// why; with the shim that wrote it as with the next one.
func TestDamagedStartsCold(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: checked})
	for name, d := range damages {
		for who, crash := range map[string]bool{"": false, " next shim": true} {
			t.Run(name+who, func(t *testing.T) {
				t.Parallel()
				a := start(t, w, strings.ReplaceAll(name+who, " ", "-"), options{})
				old := a.dial()
				a.must(echo(old, "before"))
				a.sleep()
				dir := a.snapshots()
				if crash {
					a.killShim()
				}
				from := int64(len(a.log()))
				a.damage(d.file, d.damage)
				if crash {
					a.Again()
				}
				a.IsNew()
				outcome, detail := a.lastWake()
				if outcome != "cold-started" || !strings.Contains(detail, d.file) {
					t.Errorf("told as %s: %s", outcome, detail)
				}
				if s, err := a.w.Status(a.ctx(), a.ID); err != nil || s.GetImageBytes() != 0 || s.GetSequence() != 0 {
					t.Errorf("a snapshot is told that is not there: %v, %v", s, err)
				}
				a.inLog(from, d.file)
				if err := echo(old, "after"); err == nil {
					t.Error("a connection to the lost server is answered")
				}
				aside, err := filepath.Glob(filepath.Join(dir, "quarantine", "*.json"))
				if err != nil || len(aside) == 0 {
					t.Errorf("set aside: %v, %v", aside, err)
				}
				a.sleep()
				a.GoesOn()
			})
		}
	}
}

// Where the policy is to block, nothing is changed until a person has looked; then it is tried again.
func TestDamagedBlocks(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: checked})
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, w, strings.ReplaceAll(name, " ", "-"), options{
				annotations: map[string]string{"on-restore-failure": "block"},
			})
			a.sleep()
			mend := a.damage(d.file, d.damage)
			if body, err := a.Try("GET", "/counter"); err == nil {
				t.Fatalf("a damaged server answers %s", body)
			}
			s, err := w.WaitState(a.ctx(), a.ID, "blocked")
			a.must(err)
			if last := s.GetLastWake(); last.GetOutcome() != "blocked" || !strings.Contains(last.GetDetail(), d.file) {
				t.Errorf("told as %s: %s", last.GetOutcome(), last.GetDetail())
			}
			if _, err := w.Wake(a.ctx(), a.ID); err == nil || !strings.Contains(err.Error(), d.file) {
				t.Errorf("the second try, which can't succeed, ends with: %v", err)
			}
			mend()
			if _, err := w.Output(a.ctx(), "hibernatectl", "--config", w.ConfigFile(), "wake", a.ID); err != nil {
				t.Error(err)
			}
			a.GoesOn()
		})
	}
}

// damage changes a file of the newest snapshot, or the head. The returned function mends it.
func (a *app) damage(file string, change func([]byte) []byte) (mend func()) {
	a.Helper()
	dir := a.snapshots()
	var path string
	for _, pattern := range []string{"", "[0-9]*", "[0-9]*/image"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern, file))
		a.must(err)
		if len(found) > 0 {
			path = found[0]
		}
	}
	was, err := os.ReadFile(path)
	a.must(err)
	if change == nil {
		a.must(os.Remove(path))
	} else {
		a.must(os.WriteFile(path, change([]byte(string(was))), 0o600))
	}
	return func() { a.must(os.WriteFile(path, was, 0o600)) }
}

package flat

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Whatever byte of the memory is wrong on the disk, no workload ever reads it: each time it began afresh, and that was told.
// FLAT_CORRUPTIONS says how many there are to be, FLAT_SEED which.
func TestLateCorruptions(t *testing.T) {
	n, seed := number(t, "FLAT_CORRUPTIONS", 12), uint64(number(t, "FLAT_SEED", 1))
	t.Logf("FLAT_SEED=%d", seed)
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	a := start(t, w, "web", 24, harness.Container{})
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		a.sleep()
		at := r.Int64N(a.size("pages.img"))
		a.flip("pages.img", at)
		a.isNewAfterIt(i, at)
		a.emptyQuarantine()
	}
	t.Logf("late_corruptions=%d late_wrong_bytes=0", n)
}

// isNewAfterIt asks until the server that began afresh answers: one of the lost server's answers may come before the bad
// chunk does, but never another memory than its own.
func (a *app) isNewAfterIt(i int, at int64) {
	a.Helper()
	a.eventually(fmt.Sprintf("corruption %d, of byte %d, is found", i, at), func() bool {
		_, _ = a.Try("GET", "/memory/sha256") // needs all memory: a wrong byte would be read
		last := a.status().GetLastWake()
		if last.GetOutcome() != "cold-started" {
			return false
		}
		if !strings.Contains(last.GetDetail(), "pages.img") {
			a.Fatalf("told as %s", last.GetDetail())
		}
		return true
	})
	a.IsNew()
}

func (a *app) emptyQuarantine() {
	a.Helper()
	all, err := filepath.Glob(a.w.Path(filepath.Join(a.w.DataDir(), a.w.Name, "*", "quarantine")))
	a.must(err)
	if len(all) != 1 {
		a.Fatalf("quarantine: %v", all)
	}
	a.must(os.RemoveAll(all[0]))
}

func number(t *testing.T, key string, otherwise int) int {
	t.Helper()
	text := os.Getenv(key)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q: %v", key, text, err)
	}
	return n
}

package move

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/executors"
	"github.com/hibernate-runtime/hibernate/internal/testroot"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// fieldRuns is how many runs one pair of nodes is used for: it has so many addresses for pods.
const fieldRuns = 15

// fromEnv is a number of the environment, or another.
func fromEnv(t *testing.T, name string, other uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return other
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestExecutors: whatever fails when, a witness outside of both nodes never hears two copies at once, nothing that was committed is lost, and one copy
// comes up in the end. MOVE_CHAOS says how many random runs, MOVE_SEED which.
func TestExecutors(t *testing.T) {
	storetest.Require(t)
	testroot.Require(t)
	first, n := fromEnv(t, "MOVE_SEED", 1), fromEnv(t, "MOVE_CHAOS", 3)
	for seed := first; seed < first+n; seed += fieldRuns {
		t.Run(fmt.Sprint("from=", seed), func(t *testing.T) {
			t.Parallel() // they wait most of the time
			chaos(t, seed, min(fieldRuns, first+n-seed))
		})
	}
}

// chaos does some runs on one pair of nodes.
func chaos(t *testing.T, first, n uint64) {
	gw := storetest.Versitygw(t, false)
	key := filepath.Join(t.TempDir(), "store.key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("k"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &executors.Field{Log: t.Logf, Store: executors.Store{
		Server: gw, Address: strings.TrimPrefix(gw.Endpoint, "http://"), Bucket: gw.Bucket(t), Credentials: gw.Credentials, Key: key,
	}}
	if err := f.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	for seed := first; seed < first+n; seed++ {
		ctx, cancel := context.WithTimeout(t.Context(), limit*5)
		r, err := f.Run(ctx, seed)
		cancel()
		if err != nil || r.Failed() { // what follows would tell of the same
			t.Fatalf("MOVE_SEED=%d MOVE_CHAOS=1 does the same again: %v\n%s\n%s", seed, err, r, f.LogTails(8000))
		}
		t.Logf("seed %d is done: %s", seed, r)
	}
}

package store

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/chaos"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
)

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

// TestChaos: whatever is killed when, nothing that was committed is lost, and after a collection nothing is left over. STORE_CHAOS says how many
// runs, STORE_SEED which.
func TestChaos(t *testing.T) {
	s := newS3(t)
	settings := s.settings(s.bucket, "right")
	s.restart(settings)
	objects, err := open.URL(s.gw.URL(s.bucket, "snapshots"))
	s.must(err)
	t.Cleanup(func() { _ = objects.Close() })
	key, err := durable.KeyFile(s.key("right"))
	s.must(err)
	f := &chaos.Field{World: s.World, Server: s.gw, Store: objects, Keys: durable.Keyring{Current: key}}
	s.must(s.Import(s.context(), "testserver"))
	s.must(f.Open(s.context()))
	defer func() { s.must(f.Close()) }()
	first, n := fromEnv(t, "STORE_SEED", 1), fromEnv(t, "STORE_CHAOS", 15)
	for seed := first; seed < first+n; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r, err := f.Run(t.Context(), seed)
			if err != nil || r.Failed() {
				t.Fatalf("STORE_SEED=%d STORE_CHAOS=1 does the same again: %v\n%s\n%s", seed, err, r, s.Daemon.LogTail(6000))
			}
		})
		if t.Failed() {
			return // what follows would tell of the same
		}
	}
}

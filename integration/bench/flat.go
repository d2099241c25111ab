package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// How a sleeper's memory comes back: values of the key load, and flat with a sandbox that stands by.
const (
	flatLoad    = "flat"
	plainLoad   = "plain"
	standbyLoad = "standby"
)

// otherWays are the lines that stand for load = "flat" in the configurations of the other ways.
var otherWays = map[string]string{plainLoad: `load = "plain"`, standbyLoad: "load = \"flat\"\nstandby = \"on\""}

// wayConfig makes a configuration like the world's whose workloads wake in another way, and returns its path.
func wayConfig(b *bench, way string) (string, error) {
	text, err := os.ReadFile(b.world.Path(b.world.ConfigFile()))
	if err != nil {
		return "", err
	}
	const flat, mode = `load = "flat"`, `mode = "manual"`
	own := string(text)
	if !strings.Contains(own, flat) { // which is the default
		own = strings.Replace(own, mode, mode+"\n"+flat, 1)
	}
	other := strings.Replace(own, flat, otherWays[way], 1)
	if other == own {
		return "", errors.New("the world's configuration has no line " + mode)
	}
	path := filepath.Join(b.world.Dir, way+".toml")
	return path, os.WriteFile(b.world.Path(path), []byte(other), 0o644)
}

// newLoaded runs a test server whose wakes are of one way.
func newLoaded(ctx context.Context, b *bench, way string, mib int) (*ours, error) {
	id := fmt.Sprint(way, "-", mib)
	if b.made++; b.made > 1 {
		id = fmt.Sprint(id, "-", b.made)
	}
	return newOursOf(ctx, b, id, func(o *ours) (harness.Container, error) {
		c := o.container(mib, nil)
		c.Env = append(c.Env, b.env...)
		return c, b.choose(&c, way)
	})
}

// choose has a container's wakes be of one way.
func (b *bench) choose(c *harness.Container, way string) error {
	if otherWays[way] == "" {
		return nil
	}
	path, err := wayConfig(b, way)
	c.Flags = append(c.Flags, "--runtime-config-path", path)
	return err
}

// A flatWake is one wake of a workload, how long it took until all was loaded, and what was told of it at the first answer.
type flatWake struct {
	first, loaded time.Duration
	told          *shimv1.Transition
}

// wakeAll wakes a sleeper by a new connection, waits until all its memory is there, and has it sleep again.
func (o *ours) wakeAll(ctx context.Context, way string) (flatWake, error) {
	if err := awaitDisk(ctx, o.world.Path(o.world.DataDir())); err != nil {
		return flatWake{}, err
	}
	took, t, err := o.wakeNew(ctx)
	if err != nil {
		return flatWake{}, fmt.Errorf("%s: wake: %w", o.id, err)
	}
	loaded, err := o.awaitLoaded(ctx, t, way)
	if err != nil {
		return flatWake{}, err
	}
	if _, _, err := o.sleep(ctx); err != nil {
		return flatWake{}, fmt.Errorf("%s: hibernation: %w", o.id, err)
	}
	return flatWake{took, loaded, t}, nil
}

const (
	quickSync = 4 * time.Millisecond // a small file's, on a disk with nothing to do
	quickOnes = 5                    // such, one after the other, and the disk is at rest
	diskWait  = 10 * time.Second     // no longer: others may be writing
)

// awaitDisk waits until the disk that dir is on has done what a hibernation leaves behind. Freeing the blocks of the snapshot that was
// replaced goes on for as long as a wake takes where that had several GiB, and each file that a wake writes waits for it. It would
// be counted to whoever wakes next.
func awaitDisk(ctx context.Context, dir string) error {
	path := filepath.Join(dir, "disk-probe")
	defer os.Remove(path)
	end := time.Now().Add(diskWait)
	for quick := 0; quick < quickOnes && time.Now().Before(end) && ctx.Err() == nil; time.Sleep(2 * quickSync) {
		began := time.Now()
		if err := atomicfile.Write(path, []byte("probe"), 0o600, atomicfile.Options{Sync: true}); err != nil {
			return err
		}
		if quick++; time.Since(began) > quickSync {
			quick = 0
		}
	}
	return context.Cause(ctx)
}

// awaitLoaded returns how long after the wake's beginning all memory was there: the end of its step load, or of restore where
// that loads all; the wake's own end where memory was there by then. A wake of the other way is an error.
func (o *ours) awaitLoaded(ctx context.Context, t *shimv1.Transition, way string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if t.GetDetail() != "" {
		return 0, fmt.Errorf("%s: the wake was not %s: %s", o.id, way, t.GetDetail())
	}
	step := "restore"
	if way != plainLoad {
		step = "load"
	}
	for ctx.Err() == nil {
		for _, s := range t.GetSteps() {
			if s.GetName() == step {
				return time.Duration((s.GetStartMs() + s.GetMs()) * float64(time.Millisecond)), nil
			}
		}
		time.Sleep(retryEach)
		s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
		if err != nil {
			return 0, err
		}
		if t = s.GetLastWake(); !isLoading(s) && !hasStep(t, step) {
			return time.Duration(t.GetTotalMs() * float64(time.Millisecond)), nil
		}
	}
	return 0, fmt.Errorf("%s: the wake has no step %s: %v: %w", o.id, step, t, context.Cause(ctx))
}

func isLoading(s *shimv1.StatusResponse) bool {
	return slices.ContainsFunc(s.GetBlockers(), func(r *shimv1.Reason) bool { return r.GetCode() == "loading" })
}

func hasStep(t *shimv1.Transition, name string) bool {
	return slices.ContainsFunc(t.GetSteps(), func(s *shimv1.Step) bool { return s.GetName() == name })
}

// chill has the kernel forget a sleeper's snapshot, so that it is read from the disk: it was synced when it was written.
func (o *ours) chill() error {
	found := 0
	dir := snapshot.DirFor(o.world.Path(o.world.DataDir()), o.world.Name, o.id, "")
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".img" {
			return err
		}
		found++
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
	if err == nil && found == 0 {
		err = fmt.Errorf("%s: no snapshot below %s", o.id, dir)
	}
	return err
}

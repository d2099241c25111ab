package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

const (
	// corruptMiB is memory enough for a wake to answer before all of it is there.
	corruptMiB = 24
	// foundWithin bounds how long a bad chunk may go unnoticed; nothing takes so long unless it fails.
	foundWithin = 40 * time.Second
)

// corrupted is a workload whose snapshots are damaged while it sleeps.
type corrupted struct {
	*ours
	http *http.Client
	sum  string // of its server's memory
}

// measureCorruptions changes a byte somewhere in the memory of a sleeper, wakes it, and has its server read all of its memory, again
// and again: each time it must begin afresh, and no answer may tell of another memory than it had, or has then.
func measureCorruptions(ctx context.Context, b *bench) (err error) {
	o, err := newLoaded(ctx, b, flatLoad, corruptMiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	o.old.conn.Close() // it would be a connection that the next server doesn't know
	o.old = nil
	c := &corrupted{ours: o, http: b.world.HTTP()}
	c.http.Timeout = foundWithin
	if c.sum, err = c.readAll(ctx); err != nil {
		return err
	}
	seed := rand.Uint64()
	fmt.Fprintf(os.Stderr, "bench: corruptions: seed %d\n", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	wrong := 0
	for i := range b.plan.flatCorruptions {
		n, err := c.round(ctx, r)
		if err != nil {
			return fmt.Errorf("corruption %d: %w", i, err)
		}
		wrong += n
	}
	n := b.plan.flatCorruptions
	b.add("late_corruptions", float64(n), "", fmt.Sprint(">= ", full.flatCorruptions), n)
	b.add("late_wrong_bytes", float64(wrong), "", "<= 0", n)
	return nil
}

// round damages and wakes it once, and returns how many answers told of a memory that is neither the lost server's nor the new one's.
func (c *corrupted) round(ctx context.Context, r *rand.Rand) (wrong int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*foundWithin)
	defer cancel()
	c.http.CloseIdleConnections()
	if _, _, err := c.sleep(ctx); err != nil {
		return 0, err
	}
	at, err := c.flip(r)
	if err != nil {
		return 0, err
	}
	var answers []string
	for fresh := false; !fresh; {
		if sum, err := c.readAll(ctx); err == nil {
			answers = append(answers, sum)
		} else if ctx.Err() != nil {
			return 0, fmt.Errorf("byte %d is not found: %w", at, errors.Join(ctx.Err(), err))
		}
		if fresh, err = c.isFresh(ctx); err != nil {
			return 0, fmt.Errorf("byte %d: %w", at, err)
		}
	}
	was := c.sum
	if c.sum, err = c.readAll(ctx); err != nil {
		return 0, err
	}
	for _, a := range answers {
		if a != was && a != c.sum {
			wrong++
		}
	}
	return wrong, os.RemoveAll(filepath.Join(c.snapshots(), "quarantine"))
}

// isFresh says whether it has begun afresh, because of the bad chunk.
func (c *corrupted) isFresh(ctx context.Context) (bool, error) {
	s, err := c.shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return false, err
	}
	last := s.GetLastWake()
	if last.GetOutcome() != "cold-started" || s.GetState() != "awake" {
		return false, nil
	}
	if !strings.Contains(last.GetDetail(), "pages.img") {
		return false, fmt.Errorf("it began afresh because of %s", last.GetDetail())
	}
	return true, nil
}

func (c *corrupted) snapshots() string {
	return snapshot.DirFor(c.world.Path(c.world.DataDir()), c.world.Name, c.id, "")
}

// flip changes one bit of the newest snapshot's memory, and returns where.
func (c *corrupted) flip(r *rand.Rand) (at int64, err error) {
	found, err := filepath.Glob(filepath.Join(c.snapshots(), "[0-9]*/image/pages.img"))
	if err != nil || len(found) != 1 {
		return 0, fmt.Errorf("%d snapshots below %s: %w", len(found), c.snapshots(), err)
	}
	f, err := os.OpenFile(found[0], os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	at = r.Int64N(st.Size())
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return 0, err
	}
	b[0] ^= 1 << r.IntN(8)
	_, err = f.WriteAt(b[:], at)
	return at, err
}

// readAll has the server read all of its memory, and returns the checksum.
func (c *corrupted) readAll(ctx context.Context) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address.String()+"/memory/sha256", nil)
	if err != nil {
		return "", err
	}
	answer, err := c.http.Do(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	sum, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(sum), err
}

package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Report is what Probe has found.
type Report struct {
	// Honest: each condition held or failed as it should, also among writers that came at once. What isn't honest can keep
	// snapshots, and can't decide who may run one.
	Honest bool
	Why    string // when it isn't
	// Skew is how far the store's clock is ahead of this machine's, to a second or the round trip's time. S3 refuses
	// requests from a quarter of an hour on.
	Skew time.Duration
}

const (
	probePlace   = "_probe/" // below the prefix
	probeRounds  = 5
	probeWriters = 16
	probeStale   = time.Hour // what a probe that was killed has left is removed by a later one from this age on
	probeSweep   = 30 * time.Second
)

// Probe tries the store's conditional writes, alone and by writers that begin at the same moment: many servers ignore the
// conditions, or compare and write in two steps. It takes some 200 small requests, works below prefix + "_probe/", and
// removes what it wrote. An error means that it could not be found out.
func Probe(ctx context.Context, s Store, prefix string) (Report, error) {
	nonce := make([]byte, 12)
	rand.Read(nonce)
	p := &probe{Store: s, at: prefix + probePlace + hex.EncodeToString(nonce) + "/"}
	skew, err := p.clock(ctx, prefix)
	if err != nil {
		return Report{}, fmt.Errorf("probe: %w", err)
	}
	defer p.sweep(ctx)
	for _, try := range []func(context.Context) error{p.alone, p.creators, p.changers} {
		if err := try(ctx); err != nil {
			if dishonest := (*dishonestError)(nil); errors.As(err, &dishonest) {
				return Report{Why: dishonest.why, Skew: skew}, nil
			}
			return Report{Skew: skew}, fmt.Errorf("probe: %w", err)
		}
	}
	return Report{Honest: true, Skew: skew}, nil
}

// dishonestError is a condition that didn't do what it says.
type dishonestError struct{ why string }

func (e *dishonestError) Error() string {
	return "the store's conditional writes can't be relied on: " + e.why
}

func dishonest(format string, args ...any) error {
	return &dishonestError{fmt.Sprintf(format, args...)}
}

type probe struct {
	Store
	at      string
	mu      sync.Mutex
	written []string // names that may be there
}

// clock compares the clocks, and removes what earlier probes have left.
func (p *probe) clock(ctx context.Context, prefix string) (time.Duration, error) {
	began := time.Now()
	old, now, err := p.List(ctx, prefix+probePlace)
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	for _, o := range old {
		if now.Sub(o.Modified) > probeStale {
			if err := p.Delete(ctx, o.Name); err != nil {
				return 0, err
			}
		}
	}
	skew := now.Sub(began.Add(took / 2).Truncate(time.Second))
	if skew.Abs() <= time.Second+took/2 {
		skew = 0
	}
	return skew, nil
}

// sweep removes what was written, also when ctx has ended.
func (p *probe) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeSweep)
	defer cancel()
	for _, name := range p.written {
		p.Delete(ctx, name) // one that stays is removed by a later probe
	}
}

func (p *probe) put(ctx context.Context, name, body string, cond Condition) (Version, error) {
	p.mu.Lock()
	p.written = append(p.written, name)
	p.mu.Unlock()
	return p.Put(ctx, name, []byte(body), cond)
}

// alone tries each condition with nobody else there.
func (p *probe) alone(ctx context.Context) error {
	name := p.at + "alone"
	first, err := p.put(ctx, name, "first", Condition{Absent: true})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	second, err := p.put(ctx, name, "second", Condition{Version: first})
	if err != nil {
		return fmt.Errorf("change: %w", err)
	}
	if first == second {
		return dishonest("two contents have the same version")
	}
	for _, c := range []struct {
		what string
		name string
		cond Condition
		want error
	}{
		{"a write for where nothing is was done over an object", name, Condition{Absent: true}, ErrExists},
		{"a write over one version was done over another", name, Condition{Version: first}, ErrChanged},
		{"a write over a version was done where nothing is", name + "-none", Condition{Version: first}, ErrChanged},
	} {
		switch _, err := p.put(ctx, c.name, "third", c.cond); {
		case err == nil:
			return dishonest("%s", c.what)
		case !errors.Is(err, c.want):
			return fmt.Errorf("tried whether %s: %w", c.what, err)
		}
	}
	return p.holds(ctx, name, "second")
}

// holds compares what is there with what must be.
func (p *probe) holds(ctx context.Context, name, want string) error {
	body, _, err := p.Get(ctx, name, 1000)
	switch {
	case err != nil:
		return fmt.Errorf("read back: %w", err)
	case string(body) != want:
		return dishonest("%q is there, where %q was written last and all after it were refused", body, want)
	}
	return nil
}

func (p *probe) creators(ctx context.Context) error {
	for round := range probeRounds {
		name := fmt.Sprintf("%screate-%d", p.at, round)
		if err := p.race(ctx, name, Condition{Absent: true}); err != nil {
			return err
		}
	}
	return nil
}

func (p *probe) changers(ctx context.Context) error {
	name := p.at + "change"
	for round := range probeRounds {
		version, err := p.put(ctx, name, fmt.Sprint("round ", round), Always)
		if err != nil {
			return err
		}
		if err := p.race(ctx, name, Condition{Version: version}); err != nil {
			return err
		}
	}
	return nil
}

// race lets writers begin at one moment under the same condition: at most one may be told that it has written, and exactly
// one has.
func (p *probe) race(ctx context.Context, name string, cond Condition) error {
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	errs := make([]error, probeWriters)
	ready.Add(probeWriters)
	for i := range errs {
		done.Go(func() {
			ready.Done()
			<-begin
			_, errs[i] = p.put(ctx, name, contender(i), cond)
		})
	}
	ready.Wait()
	close(begin)
	done.Wait()

	var winners []string
	var unknown error
	for i, err := range errs {
		switch {
		case err == nil:
			winners = append(winners, contender(i))
		case !errors.Is(err, ErrExists) && !errors.Is(err, ErrChanged):
			unknown = err // an answer that was lost, or a store that says nothing of who won
		}
	}
	switch {
	case len(winners) > 1:
		return dishonest("of %d that wrote at once under the same condition %s were told that they did", probeWriters, strings.Join(winners, ", "))
	case len(winners) == 1:
		return p.holds(ctx, name, winners[0])
	case unknown != nil:
		return unknown
	}
	return dishonest("of %d that wrote at once under a condition that held all were refused", probeWriters)
}

func contender(i int) string { return fmt.Sprint("writer ", i) }

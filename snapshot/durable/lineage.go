package durable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Config of a Tier. Zero values are the defaults that are said here.
type Config struct {
	Store store.Store
	Keys  Keyring
	// Node tells other nodes who has claimed something.
	Node string
	// Incarnation tells this node from another one of its name, and outlives the process: what it has claimed, it may claim again. "": a
	// random one, of the Tier.
	Incarnation string
	// Generations is how many are kept of each lineage: 3.
	Generations int
	// Grace is the age from which the collector takes what nothing names: 1 hour.
	Grace time.Duration
	// Workers compress and hash: as many as there are cores.
	Workers int
	// Pace is called by a commit's workers after each piece of work, of 1 MiB or less, with how long it took and how many bytes the commit
	// has sent since the last call. It may wait, until its context ends. nil: they go on at once.
	Pace func(ctx context.Context, took time.Duration, sent int64)
	// Uploads and Downloads are at work at a time, for each call: 2 and 8.
	Uploads, Downloads int
	// CachedFrames, of 256 KiB, are kept for each snapshot that is open: 64.
	CachedFrames int
}

// Tier is a store with keys.
type Tier struct {
	cfg         Config
	codec       *codec
	incarnation string
	now         func() time.Time
	boot        func() time.Duration // since the host was booted, sleep included
	pause       func(context.Context, time.Duration) error
}

// New makes a tier. It does nothing yet. ErrNoKey without a key.
func New(cfg Config) (*Tier, error) {
	if cfg.Store == nil {
		return nil, errors.New("durable tier without a store")
	}
	if cfg.Keys.Current == nil {
		return nil, fmt.Errorf("%w: configure a key file or a key command, and keep a copy of the key elsewhere; or say that snapshots are to be kept in clear", ErrNoKey)
	}
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Generations, 3)
	def(&cfg.Workers, runtime.GOMAXPROCS(0))
	def(&cfg.Uploads, 2)
	def(&cfg.Downloads, 8)
	def(&cfg.CachedFrames, 64)
	if cfg.Grace <= 0 {
		cfg.Grace = time.Hour
	}
	c, err := newCodec()
	if err != nil {
		return nil, err
	}
	if cfg.Incarnation == "" {
		cfg.Incarnation = NewIncarnation()
	}
	return &Tier{cfg: cfg, codec: c, incarnation: cfg.Incarnation, now: time.Now, boot: bootTime, pause: pause}, nil
}

func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails only for clocks that aren't there
	return time.Duration(ts.Nano())
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Lineage is one workload's part of the tier. Methods may be called from many goroutines, but those that change
// something wait for nobody but the store.
type Lineage struct {
	t    *Tier
	name string

	mu    sync.Mutex // guards the fields below
	keys  *keys
	wrap  []byte // what keys was unwrapped from
	claim string // of ours; "": none
	epoch uint64 // of claim
	floor floor
}

// floor is what was seen of a head; less can't come after it.
type floor struct{ revision, epoch, next uint64 }

// Lineage gives the part of a workload. It does nothing yet.
func (t *Tier) Lineage(name string) (*Lineage, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &Lineage{t: t, name: name}, nil
}

// Names lists the lineages that have a head.
func (t *Tier) Names(ctx context.Context) ([]string, error) {
	infos, _, err := t.cfg.Store.List(ctx, headsPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the lineages: %w", err)
	}
	var names []string
	for _, i := range infos {
		if name := i.Name[len(headsPrefix):]; checkName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// Remember says what the caller knows, from earlier, to have been claimed and committed here: a head with a lower epoch, or
// that never had the sequence, is ErrRolledBack. 0 says nothing.
func (l *Lineage) Remember(epoch, sequence uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor.epoch = max(l.floor.epoch, epoch)
	if sequence > 0 {
		l.floor.next = max(l.floor.next, sequence+1)
	}
}

// Head reads the head. Errors: ErrNone, ErrDestroyed with the tombstone, ErrWrongKey, ErrRolledBack, ErrCorrupt, ErrForeign,
// ErrVersion, those of the store.
func (l *Lineage) Head(ctx context.Context) (Head, error) {
	h, _, err := l.read(ctx)
	if err == nil && h.State == Deleted {
		err = fmt.Errorf("%s: %w", l.name, ErrDestroyed)
	}
	return h, err
}

// read gives a tombstone, too.
func (l *Lineage) read(ctx context.Context) (Head, store.Version, error) {
	before := l.known()
	data, info, err := l.t.cfg.Store.Get(ctx, headsPrefix+l.name, maxHead)
	if errors.Is(err, store.ErrNotFound) {
		if err := l.seen(Head{}, before); err != nil {
			return Head{}, "", err
		}
		return Head{}, "", fmt.Errorf("%s: %w", l.name, ErrNone)
	}
	if errors.Is(err, store.ErrTooLarge) {
		return Head{}, "", corrupt(headsPrefix+l.name, "longer than %d bytes", maxHead)
	}
	if err != nil {
		return Head{}, "", fmt.Errorf("read the head of %s: %w", l.name, err)
	}
	p, err := parseHead(l.name, data)
	if err != nil {
		return Head{}, "", err
	}
	if p.Key != nil {
		k, err := l.unwrap(ctx, *p.Key)
		if err != nil {
			return Head{}, "", fmt.Errorf("%s: %w", l.name, err)
		}
		if err := p.verify(l.name, k); err != nil {
			return Head{}, "", err
		}
	}
	return p.Head, info.Version, l.seen(p.Head, before)
}

func (l *Lineage) known() floor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.floor
}

// seen compares a head with what had been seen before it was asked for: others may have seen a newer one meanwhile.
func (l *Lineage) seen(h Head, before floor) error {
	if h.Revision < before.revision || h.Epoch < before.epoch || h.Next < before.next {
		return fmt.Errorf("%s: %w: it has revision %d, epoch %d, next sequence %d; this node has seen %d, %d, %d: somebody has put an old one back, or the store has lost writes; nothing is restored from it",
			l.name, ErrRolledBack, h.Revision, h.Epoch, h.Next, before.revision, before.epoch, before.next)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &l.floor
	f.revision, f.epoch, f.next = max(f.revision, h.Revision), max(f.epoch, h.Epoch), max(f.next, h.Next)
	return nil
}

// unwrap asks for a key once.
func (l *Lineage) unwrap(ctx context.Context, w WrappedKey) (*keys, error) {
	l.mu.Lock()
	k, same := l.keys, bytes.Equal(l.wrap, w.Wrapped)
	l.mu.Unlock()
	if k != nil && same {
		return k, nil
	}
	k, err := l.t.cfg.Keys.unwrap(ctx, w)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.wrap = k, w.Wrapped
	return k, nil
}

// errSame is what a change returns for a head that has it already.
var errSame = errors.New("nothing to change")

const (
	maxTries = 10
	firstTry = 20 * time.Millisecond // then twice as long each time, up to a second
)

// update changes the head: change is called with the newest one, again whenever somebody else was first. It must change
// nothing (errSame) where it was made already. Without a head change gets an empty one.
func (l *Lineage) update(ctx context.Context, change func(h *Head) error) (Head, error) {
	var last error
	for try := range maxTries {
		if try > 0 {
			if err := l.t.backoff(ctx, try); err != nil {
				return Head{}, errors.Join(err, last)
			}
		}
		h, v, err := l.read(ctx)
		if err != nil && !errors.Is(err, ErrNone) {
			return Head{}, err
		}
		next := h.clone()
		if err := change(&next); errors.Is(err, errSame) {
			return h, nil
		} else if err != nil {
			return h, err
		}
		written, won, err := l.swap(ctx, next, v)
		if won {
			return written, nil
		}
		if err != nil && errors.Is(err, store.ErrRefused) {
			return Head{}, err
		}
		last = err
	}
	if last != nil {
		return Head{}, fmt.Errorf("%s: the head could not be changed, or nobody knows whether it was: %w", l.name, last)
	}
	return Head{}, fmt.Errorf("%s: %w: look for another node that works on it", l.name, ErrContended)
}

func (t *Tier) backoff(ctx context.Context, try int) error {
	d := min(time.Second, firstTry<<min(try-1, 6))
	return t.pause(ctx, d/2+rand.N(d))
}

// swap writes h over the version v, or the first one. An answer that is lost is looked for. won: it was written, whoever
// came after. Otherwise err is nil when somebody else was first, and that of the store when it was not.
func (l *Lineage) swap(ctx context.Context, h Head, v store.Version) (written Head, won bool, err error) {
	h.Revision++
	h.Nonce, h.Time = newOperation().String(), l.t.now().UTC()
	data, err := l.encode(ctx, h)
	if err != nil {
		return h, false, err
	}
	if len(data) > maxHead {
		return h, false, fmt.Errorf("%s: the head would have %d bytes: collect garbage, unpin generations", l.name, len(data))
	}
	cond := store.Condition{Version: v}
	if v == "" {
		cond = store.Condition{Absent: true}
	}
	_, perr := l.t.cfg.Store.Put(ctx, headsPrefix+l.name, data, cond)
	if perr == nil {
		return h, true, l.seen(h, floor{})
	}
	now, _, rerr := l.read(ctx)
	switch {
	case rerr == nil && now.Nonce == h.Nonce:
		return h, true, nil
	case errors.Is(perr, store.ErrExists) || errors.Is(perr, store.ErrChanged):
		if rerr != nil && !errors.Is(rerr, ErrNone) {
			return h, false, rerr
		}
		return h, false, nil
	default:
		return h, false, fmt.Errorf("write the head of %s: %w", l.name, perr)
	}
}

// encode needs the key that the head has.
func (l *Lineage) encode(ctx context.Context, h Head) ([]byte, error) {
	if h.Key == nil {
		return encodeHead(l.name, h, nil)
	}
	k, err := l.unwrap(ctx, *h.Key)
	if err != nil {
		return nil, err
	}
	return encodeHead(l.name, h, k)
}

// document is the envelope of leases and lists.
type document struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	Body    json.RawMessage `json:"body"`
}

func encodeDocument(format string, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return line(document{Format: format, Version: formatVersion, Body: raw})
}

func decodeDocument(object, format string, data []byte, body any) error {
	var d document
	err := json.Unmarshal(data, &d)
	if err == nil && (d.Format != format || d.Version != formatVersion) {
		err = fmt.Errorf("format %q, version %d", d.Format, d.Version)
	}
	if err == nil {
		err = json.Unmarshal(d.Body, body)
	}
	if err != nil {
		return corrupt(object, "%v", err)
	}
	return nil
}

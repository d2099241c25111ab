package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// stored is a snapshot in the durable tier that the node's daemon has open.
type stored struct {
	client   *pages.Client
	answer   pages.Answer
	document []byte
	manifest snapshot.Manifest
}

func (s *stored) close() {
	if s != nil {
		_ = s.client.Close()
	}
}

// remembered is what the head names, or, where it can't be read, what the shim knows of it.
func (w *Workload) remembered() (head snapshot.Head) {
	head, err := w.local.Head()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		head = snapshot.Head{Lineage: w.saved.lineage}
	}
	head.Sequence = max(head.Sequence, w.saved.sequence)
	return head
}

// inStore names the workload's snapshots in the store. ok is false where nobody knows of which lineage they are.
func (w *Workload) inStore() (name pages.Workload, ok bool) {
	h := w.remembered()
	return pages.Workload{Namespace: w.opts.Namespace, ID: w.opts.ID, Identity: w.identity, Lineage: h.Lineage}, h.Lineage != "" || w.identity != ""
}

const (
	// lookWithin bounds what a wake asks the daemon of its memory.
	lookWithin = time.Second
	// openWithin bounds one try to open a snapshot in the store. The daemon's own bound is shorter.
	openWithin = 25 * time.Second
	// pinWithin bounds one try to have one kept.
	pinWithin = 25 * time.Second

	firstAsk, lastAsk = 50 * time.Millisecond, time.Second
)

// look asks the daemon for what it remembers, and for a ticket of that sequence.
func (w *Workload) look(ctx context.Context, sequence uint64) (a pages.Answer, err error) {
	name, ok := w.inStore()
	if !ok || !w.opts.Daemon.Connected() {
		return a, errNoDaemon
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	client, err := pages.Dial(ctx, pages.Socket(w.config.RunDir))
	if err != nil {
		return a, err
	}
	defer client.Close()
	a, err = client.Look(ctx, name, sequence)
	if err == nil {
		w.tiered.Store(true)
	}
	return a, err
}

var errNoDaemon = errors.New("no daemon is connected")

// openStored opens a snapshot in the store, 0 being the newest. A daemon or a store that is away is asked again until ctx ends, where
// there is one at all: waits is told of that. The answer tells what else there is, also with an error: *pages.Error, or why nobody
// could be asked until ctx ended.
func (w *Workload) openStored(ctx context.Context, sequence uint64, waits func(error)) (*stored, pages.Answer, error) {
	name, ok := w.inStore()
	if !ok {
		return nil, pages.Answer{}, &pages.Error{Class: pages.None, Message: "nothing of this workload can be there: no snapshot of it was ever told of"}
	}
	for wait := firstAsk; ; wait = min(2*wait, lastAsk) {
		s, a, err := w.tryStored(ctx, name, sequence)
		if told, ok := errors.AsType[*pages.Error](err); err == nil || ok && told.Class != pages.NoStore {
			w.tiered.Store(true)
		}
		switch {
		case err == nil:
			return s, a, nil
		case pages.ClassOf(err) != pages.Unavailable:
			return nil, a, err
		case ctx.Err() == nil && !w.mayHaveStore(err):
			return nil, a, &pages.Error{Class: pages.NoStore, Message: "no store is known of: " + err.Error()}
		}
		waits(err)
		if !pause(ctx, wait) {
			return nil, a, fmt.Errorf("it could not be asked in time (wake-timeout): %w", err)
		}
	}
}

// mayHaveStore says whether to wait for the daemon to come and tell.
func (w *Workload) mayHaveStore(err error) bool {
	var answered *pages.Error
	return errors.As(err, &answered) || w.tiered.Load() || w.config.Store != ""
}

func (w *Workload) tryStored(ctx context.Context, name pages.Workload, sequence uint64) (*stored, pages.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	client, err := pages.Dial(ctx, pages.Socket(w.config.RunDir))
	if err != nil {
		return nil, pages.Answer{}, err
	}
	s := &stored{client: client}
	if s.answer, s.document, err = client.Open(ctx, name, sequence, nil, false); err == nil {
		err = w.parse(s, name.Lineage)
	}
	if err != nil {
		s.close()
		return nil, s.answer, err
	}
	return s, s.answer, nil
}

// parse reads a snapshot's manifest, which must be of this workload.
func (w *Workload) parse(s *stored, lineage string) (err error) {
	s.manifest, err = snapshot.ParseManifest(s.document)
	m := s.manifest
	switch {
	case errors.Is(err, snapshot.ErrVersion):
		return &pages.Error{Class: pages.Refused, Message: err.Error()}
	case err != nil:
		return &pages.Error{Class: pages.Corrupt, Message: err.Error()}
	case m.Namespace != w.opts.Namespace || !w.isOf(m, lineage) || m.Sequence != s.answer.Sequence:
		return &pages.Error{Class: pages.Refused, Message: fmt.Sprintf("what is there as snapshot %d is whole, but it is %d of %s/%s, identity %q, lineage %q",
			s.answer.Sequence, m.Sequence, m.Namespace, m.ID, m.Identity, m.Lineage)}
	}
	return nil
}

// isOf says whether a manifest is of this workload: of its identity, or, without one, of this very container.
func (w *Workload) isOf(m snapshot.Manifest, lineage string) bool {
	if w.identity != "" {
		return m.Identity == w.identity
	}
	return m.Identity == "" && m.ID == w.opts.ID && m.Lineage == lineage
}

// versionsOf are all that the store has.
func versionsOf(a pages.Answer) (all []version) {
	for _, g := range a.Generations {
		all = append(all, version{g.Epoch, g.Sequence})
	}
	return all
}

// fetchers are connections that fetch files at once.
const fetchers = 4

// fetch gets files of a snapshot, and goes on with another daemon when this one ends.
func (w *Workload) fetch(ctx context.Context, s *stored, to *snapshot.Fetched, names []string, waits func(error)) error {
	g, ctx := errgroup.WithContext(ctx)
	pool := &readers{socket: pages.Socket(w.config.RunDir), ticket: s.answer.Ticket, waits: waits}
	defer pool.close()
	g.SetLimit(fetchers)
	for _, name := range names {
		g.Go(func() error { return to.Add(ctx, name, pool.read) })
	}
	return g.Wait()
}

// readers are connections to the daemon that have a snapshot open.
type readers struct {
	socket, ticket string
	waits          func(error)

	mu   sync.Mutex // guards idle
	idle []*pages.Client
}

// read fills p. What may go better another time is tried again until ctx ends.
func (r *readers) read(ctx context.Context, name string, p []byte, off int64) error {
	for wait := firstAsk; ; wait = min(2*wait, lastAsk) {
		err := r.try(ctx, name, p, off)
		if err == nil || pages.ClassOf(err) != pages.Unavailable {
			return err
		}
		r.waits(err)
		if !pause(ctx, wait) {
			return err
		}
	}
}

func (r *readers) try(ctx context.Context, name string, p []byte, off int64) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	c, err := r.get(ctx)
	if err != nil {
		return err
	}
	err = c.Read(ctx, name, p, off)
	var answered *pages.Error
	if err != nil && !errors.As(err, &answered) {
		_ = c.Close()
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, c)
	return err
}

func (r *readers) get(ctx context.Context) (*pages.Client, error) {
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	c, err := pages.Dial(ctx, r.socket)
	if err != nil {
		return nil, err
	}
	if err := c.Attach(ctx, r.ticket); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func (r *readers) close() {
	for _, c := range r.idle {
		_ = c.Close()
	}
}

// remote tells the sidecar where to read a snapshot.
func (w *Workload) remote(ticket string, only ...string) *runsc.SidecarRemote {
	if ticket == "" {
		return nil
	}
	return &runsc.SidecarRemote{
		Socket: pages.Socket(w.config.RunDir), Ticket: ticket, PatienceMs: w.config.WakeTimeout.Milliseconds(), Only: only,
	}
}

// spare asks, beside a wake from the node's own snapshot, for a ticket of its copy in the store: a chunk that is found to be wrong is
// read from there.
func (w *Workload) spare(ctx context.Context, sequence uint64) (ticket func() string) {
	ready := make(chan string, 1)
	w.background.Go(func() {
		a, _ := w.look(ctx, sequence)
		ready <- a.Ticket
	})
	return func() string {
		timer := time.NewTimer(spareWithin)
		defer timer.Stop()
		select {
		case t := <-ready:
			ready <- t
			return t
		case <-timer.C: // a daemon that hangs
			return ""
		}
	}
}

// spareWithin is how long a restore waits for that. The answer is there long before, unless the daemon hangs.
const spareWithin = 50 * time.Millisecond

// keepStored has a snapshot in the store kept that was passed over, as soon as somebody can be asked to.
func (w *Workload) keepStored(sequence uint64) {
	name, ok := w.inStore()
	if !ok || sequence == 0 || !w.tiered.Load() {
		return
	}
	w.background.Go(func() {
		ctx, stop := w.untilEnded()
		defer stop()
		for wait := firstAsk; ; wait = min(2*wait, time.Minute) {
			err := w.tryKeep(ctx, name, sequence)
			if err == nil || pages.ClassOf(err) != pages.Unavailable {
				if err != nil {
					w.opts.Log.Error("a snapshot in the store that was passed over could not be pinned", "sequence", sequence, "error", err)
				}
				return
			}
			if !pause(ctx, wait) {
				return
			}
		}
	})
}

func (w *Workload) tryKeep(ctx context.Context, name pages.Workload, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, pinWithin)
	defer cancel()
	c, err := pages.Dial(ctx, pages.Socket(w.config.RunDir))
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(ctx, name, sequence)
}

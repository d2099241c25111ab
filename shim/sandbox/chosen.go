package sandbox

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/pages"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// restoredOlder is the outcome of a wake from a snapshot that isn't the newest.
const restoredOlder = "restored-older"

// stopError is why a wake stops whatever the policy: a person must look.
type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }

// way is how one snapshot is restored.
type way struct {
	snapshot *snapshot.Snapshot
	flat     bool
	stored   bool   // it comes from the durable tier; the snapshot's directory has no more than the small files
	ready    string // the step that has it ready: verify, fetch
	check    func(ctx context.Context, flat bool) error
	claim    func(context.Context) error
	remote   func() *runsc.SidecarRemote
	drop     func() // called once it is needed no more

	overtaken func() bool // whether the right, once it is there, tells of a newer one; nil: it was chosen by the right
}

func (y *way) dropped() {
	if y.drop != nil {
		y.drop()
	}
}

// woken is how a wake ended well.
type woken struct{ outcome, detail string }

// restoreChosen restores the newest snapshot that can be, of the node or of the store, or the one that a person asked for.
func (w *Workload) restoreChosen(t *transition) (woken, error) {
	s, view, err := w.surveyLocal(t)
	if err != nil {
		return woken{}, err
	}
	var open *stored
	defer func() { open.close() }()
	w.heedRight(&view)
	for {
		if taken, err := w.takeIn(t.ctx); err != nil {
			return woken{}, err
		} else if taken {
			if s, view, err = w.surveyLocal(t); err != nil {
				return woken{}, err
			}
			w.heedRight(&view)
		}
		c := view.choose()
		t.older = c.older
		if (c.ask || c.sequence != 0) && !w.hasRight() { // the store is another node's until then
			if err := w.takeRight(t); err != nil {
				return woken{}, err
			}
			w.heedRight(&view)
			continue
		}
		switch {
		case c.err != nil && c.stop:
			return woken{}, &stopError{c.err}
		case c.err != nil:
			return woken{}, w.setAside(t, c.err)
		case c.ask:
			open = w.askStore(t, s, &view)
		case c.local:
			detail, err := w.restoreLocal(t, s, view)
			if err == nil {
				return w.settled(t, view, c, detail), nil
			}
			if errors.Is(err, overtakenError{}) {
				w.heedRight(&view)
				continue
			}
			if !unreadable(err) {
				return woken{}, err
			}
			view.here, view.localBad = false, err
		default:
			var detail string
			if open, detail, err = w.restoreGeneration(t, open, c.sequence, view.newest); err == nil {
				return w.settled(t, view, c, detail), nil
			}
			switch pages.ClassOf(err) {
			case pages.Corrupt, pages.None:
				view.spoil(c.sequence, err)
			case pages.Refused:
				return woken{}, &stopError{err}
			default:
				return woken{}, w.setAside(t, fmt.Errorf("snapshot %d in the store: %w", c.sequence, joined(view.localBad, err)))
			}
		}
	}
}

// unreadable says whether a snapshot is of no use on the node: it is corrupt, or the disk can't read it.
func unreadable(err error) bool {
	return errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, unix.EIO)
}

// joined is err, after what was wrong before, if anything.
func joined(before, err error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w (after: %w)", err, before)
}

func (s *survey) spoil(sequence uint64, err error) {
	if s.spoilt == nil {
		s.spoilt = make(map[uint64]error)
	}
	s.spoilt[sequence] = err
}

// surveyLocal looks at the node's own snapshot.
func (w *Workload) surveyLocal(t *transition) (s *snapshot.Snapshot, view survey, err error) {
	view = survey{want: t.from, newest: w.remembered().Sequence, older: w.config.RestoreOlder}
	if head, err := w.local.Head(); err == nil {
		view.number = head.Sequence
	}
	s, err = w.local.Current()
	if err == nil {
		view.local.sequence = s.Sequence()
		err = s.Complete()
	}
	switch {
	case err == nil:
		view.local, view.here = version{s.Manifest().Epoch, s.Sequence()}, true
		w.readAhead(t.ctx, s)
	case errors.Is(err, snapshot.ErrNone), unreadable(err):
		view.localBad = err
	default:
		return nil, view, fmt.Errorf("snapshot: %w", err)
	}
	if t.record.GetReason() == byStart && view.here && w.identity == "" { // nobody here remembers what came after it
		if a, err := w.look(t.ctx, 0); err == nil {
			view.newest = max(view.newest, a.Sequence)
		}
	}
	return s, view, nil
}

// askStore adds to a survey what the store has, and returns what was opened there.
func (w *Workload) askStore(t *transition, s *snapshot.Snapshot, view *survey) (open *stored) {
	view.asked = true
	w.bootBeside(t)
	var a pages.Answer
	err := t.step("store", func(ctx context.Context) (err error) {
		open, a, err = w.openForWake(ctx, t, view.want)
		return err
	})
	w.mu.Lock()
	w.waits = ""
	w.mu.Unlock()
	view.stored, view.storedErr = versionsOf(a), err
	if err != nil && pages.ClassOf(err) == pages.Corrupt && len(view.stored) > 0 {
		view.spoil(view.wanted(), err)
		view.storedErr = nil
	}
	for _, v := range view.stored {
		view.newest = max(view.newest, v.sequence)
		if w.identity == "" {
			view.local.epoch = max(view.local.epoch, v.epoch) // what the node makes is made under the newest claim: else it would be refused
		}
	}
	view.differs = open != nil && s != nil && open.manifest.Sequence == s.Sequence() && open.manifest.Epoch == s.Manifest().Epoch &&
		!open.manifest.Same(s.Manifest())
	return open
}

// wanted is the sequence that was asked for at the store.
func (s *survey) wanted() uint64 {
	if s.want != 0 {
		return s.want
	}
	return s.stored[0].sequence
}

// openForWake opens a snapshot in the store, and has people see what it waits for.
func (w *Workload) openForWake(ctx context.Context, t *transition, sequence uint64) (*stored, pages.Answer, error) {
	if f := w.takeForeseen(); f != nil && sequence == 0 {
		return f.open, f.answer, f.err
	}
	return w.openStored(ctx, sequence, w.waiting(t))
}

// waiting is waitingFor the store.
func (w *Workload) waiting(t *transition) func(error) { return w.waitingFor(t, "for the store") }

// waitingFor notes what a wake waits for, in the log, its record and Status.
func (w *Workload) waitingFor(t *transition, what string) func(error) {
	return func(err error) {
		text := "waits " + what + ": " + err.Error()
		w.mu.Lock()
		first := w.waits == ""
		w.waits = text
		if first {
			w.announce(nil)
		}
		w.mu.Unlock()
		if first {
			w.opts.Log.Warn("a wake waits "+what, "id", t.record.GetId(), "error", err)
			t.remark("it had to wait " + what + ": " + err.Error())
		}
	}
}

// restoreLocal restores the node's own snapshot. detail says why memory was not loaded flat, though it should be.
func (w *Workload) restoreLocal(t *transition, s *snapshot.Snapshot, view survey) (detail string, err error) {
	ticket, newest := w.spare(t.ctx, s.Sequence()), view.newest
	return w.attempt(t, way{
		snapshot: s, ready: "verify", overtaken: w.overtakes(view),
		check: func(ctx context.Context, flat bool) error {
			if flat && w.config.Verify == config.VerifyWhile {
				return s.VerifyOthers(ctx)
			}
			return s.Verify(ctx)
		},
		claim: func(ctx context.Context) error {
			if s.Sequence() < newest {
				return w.local.SetRestored(ctx, s.Manifest(), newest)
			}
			return w.local.SetState(ctx, snapshot.Awake)
		},
		remote: func() *runsc.SidecarRemote { return w.remote(ticket()) },
	})
}

// restoreGeneration restores a snapshot of the store, opening it where open is another one. It returns what is open.
func (w *Workload) restoreGeneration(t *transition, open *stored, sequence, newest uint64) (_ *stored, detail string, err error) {
	if open == nil || open.manifest.Sequence != sequence {
		open.close()
		err := t.step("store", func(ctx context.Context) (err error) {
			open, _, err = w.openStored(ctx, sequence, w.waiting(t))
			return err
		})
		if err != nil {
			return nil, "", err
		}
	}
	detail, err = w.restoreStored(t, open, newest)
	return open, detail, err
}

// restoreStored restores what is open. Errors about its content are *pages.Error.
func (w *Workload) restoreStored(t *transition, s *stored, newest uint64) (detail string, err error) {
	if err := w.sameContainer(t, s.manifest); err != nil {
		return "", err
	}
	fetched, err := w.local.Fetch(s.document)
	if err != nil {
		return "", asStored(err)
	}
	if err := w.able(t.ctx, t, fetched.Snapshot()); err != nil { // before the daemon is asked for any of it
		return "", err
	}
	if w.identity != "" && w.origin == nil { // it slept on another node since
		if w.origin, err = originOf(s.manifest); err != nil {
			return "", err
		}
	}
	w.mu.Lock()
	if w.ports == nil || w.identity != "" {
		w.ports, w.only4 = s.manifest.Ports, s.manifest.Only4
	}
	w.mu.Unlock()
	y := way{
		snapshot: fetched.Snapshot(), stored: true, ready: "fetch",
		claim:  func(ctx context.Context) error { return w.claimStored(ctx, s.manifest, newest) },
		remote: func() *runsc.SidecarRemote { return w.remote(s.answer.Ticket, snapshot.PagesFile) },
		drop: func() {
			if err := fetched.Drop(); err != nil {
				w.opts.Log.Warn("what was fetched", "error", err)
			}
		},
	}
	y.check = func(ctx context.Context, flat bool) error {
		names := s.manifest.SmallFiles()
		if !flat {
			names = append(names, snapshot.PagesFile)
		}
		return asStored(w.fetch(ctx, s, fetched, names, w.waiting(t)))
	}
	// The daemon begins at once with what is asked for later.
	if err := s.client.Expect(t.ctx, s.manifest.FirstChunks(), true); err != nil {
		w.opts.Log.Debug("expect", "error", err)
	}
	if detail, err = w.attempt(t, y); err != nil {
		y.dropped()
	}
	return detail, err
}

// claimStored has the head say that the workload runs. One that can't be read is set aside: that the workload slept, and as what, the
// shim knows.
func (w *Workload) claimStored(ctx context.Context, m snapshot.Manifest, newest uint64) error {
	if _, err := w.local.Head(); errors.Is(err, snapshot.ErrCorrupt) {
		if err := w.local.QuarantineHead(err.Error()); err != nil {
			return err
		}
	}
	return w.local.SetRestored(ctx, m, newest)
}

// asStored makes what is wrong with a snapshot from the store be no error of the node's own.
func asStored(err error) error {
	if errors.Is(err, snapshot.ErrCorrupt) {
		return &pages.Error{Class: pages.Corrupt, Message: err.Error()}
	}
	return err
}

// overtakes says, once the right is there, whether the node's snapshot is not to be restored by it.
func (w *Workload) overtakes(view survey) func() bool {
	if w.identity == "" || view.heeded || view.want != 0 {
		return nil
	}
	return func() bool {
		now := view
		w.heedRight(&now)
		return w.hasReceived() || !now.here || now.ranOn != ""
	}
}

// settled keeps what a wake has passed over, and says what was restored.
func (w *Workload) settled(t *transition, view survey, c choice, detail string) woken {
	r := woken{outcome: restored, detail: detail}
	from := c.sequence
	if c.local {
		from = view.local.sequence
	}
	why := fmt.Sprintf("from snapshot %d, not %d: ", from, view.newest)
	switch {
	case view.want != 0:
		why += "by request"
	case view.ranOn != "":
		why = fmt.Sprintf("from snapshot %d: %s", from, view.ranOn)
	default:
		why += "it is older than the newest, which can't be restored"
	}
	if c.older {
		r.outcome = restoredOlder
		t.remark(why)
	}
	if c.local {
		w.tellOrigin(t, from)
	} else {
		t.remark(fmt.Sprintf("snapshot %d came from the store", from))
		w.passOver(view, from)
	}
	for _, v := range view.stored {
		if v.sequence > from {
			w.keepStored(v.sequence)
		}
	}
	if view.localBad != nil || len(view.spoilt) > 0 {
		t.remark(view.failure("").Error())
	}
	w.mu.Lock()
	w.saved.sequence = max(w.saved.sequence, view.newest)
	w.mu.Unlock()
	return r
}

// passOver sets the node's own snapshot aside, which the next hibernation would replace.
func (w *Workload) passOver(view survey, from uint64) {
	reason := fmt.Sprintf("snapshot %d was restored from the store instead", from)
	if view.localBad != nil {
		reason += ": " + view.localBad.Error()
	}
	if view.number == 0 || errors.Is(view.localBad, snapshot.ErrNone) {
		return
	}
	if err := w.local.QuarantineSequence(view.number, reason); err != nil {
		w.opts.Log.Error("a snapshot that was passed over could not be set aside", "error", err)
	}
}

// foreseen is what Start has opened in the store, since the node has nothing that tells of the workload's network.
type foreseen struct {
	open   *stored
	answer pages.Answer
	err    error
}

// foresee looks at the store, before Start joins the network, where the node's own snapshot can't be read.
func (w *Workload) foresee(ctx context.Context) {
	if !w.needsStore() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.WakeTimeout)
	defer cancel()
	f := &foreseen{}
	f.open, f.answer, f.err = w.openStored(ctx, 0, func(err error) { w.opts.Log.Warn("a start waits for the store", "error", err) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.foreseen = f
}

// needsStore says whether what Start restores is in the store alone, or is newer there.
func (w *Workload) needsStore() bool {
	if w.identity != "" {
		view := w.surveyHere()
		w.heedRight(&view)
		return !view.here
	}
	_, err := w.local.Current()
	return errors.Is(err, snapshot.ErrNone) || errors.Is(err, snapshot.ErrCorrupt)
}

func (w *Workload) takeForeseen() *foreseen {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.foreseen
	w.foreseen = nil
	return f
}

// WakeFrom wakes a workload that sleeps, or is blocked, from a snapshot that a person names, of the node or of the store, 0 being the newest; with
// staleVolumes over files that have gone on without it, too. Errors: *RefusedError where it is in another state, ErrNotThere, and those of Wake.
func (w *Workload) WakeFrom(ctx context.Context, sequence uint64, staleVolumes bool, id string) (*shimv1.Transition, error) {
	if err := w.mayWakeFrom(); err != nil {
		return nil, err
	}
	if sequence != 0 {
		if err := w.hasSnapshot(ctx, sequence); err != nil {
			return nil, err
		}
	}
	t := newTransition("wake", ByRequest, id, w.config.WakeTimeout, w.opts.Now, w.note)
	t.from, t.stale = sequence, staleVolumes
	w.mu.Lock()
	t, err := w.begin(lifecycle.Wake, t)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	go w.wake(t)
	return t.result(ctx)
}

func (w *Workload) mayWakeFrom() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.pausedSleeper():
		return ErrPaused
	case w.state == lifecycle.Asleep, w.state == lifecycle.Blocked:
		return nil
	}
	what := "it is " + w.state.String() + ": wait for the end of that"
	if w.state == lifecycle.Awake {
		what = "it is awake: put it to sleep first (hibernatectl hibernate), which keeps what it is now as a snapshot of its own"
	}
	return &RefusedError{Verb: "wake from a snapshot", Reasons: []*shimv1.Reason{reason(w.state.String(), what)}}
}

// hasSnapshot looks for a snapshot before anything is begun.
func (w *Workload) hasSnapshot(ctx context.Context, sequence uint64) error {
	s, err := w.local.Current()
	if err == nil && s.Sequence() == sequence {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.WakeTimeout)
	defer cancel()
	open, a, err := w.openStored(ctx, sequence, func(error) {})
	open.close()
	switch pages.ClassOf(err) {
	case pages.None, pages.NoStore:
		view := survey{stored: versionsOf(a)}
		if s != nil {
			view.here, view.local.sequence = true, s.Sequence()
		}
		return fmt.Errorf("%w: %d; %s", ErrNotThere, sequence, view.list())
	}
	if err != nil {
		return fmt.Errorf("%w: snapshot %d in the store: %w", ErrPrecondition, sequence, err)
	}
	return nil
}

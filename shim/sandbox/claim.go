package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/hibernate-runtime/hibernate/api/rights"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Nothing of a workload with an identity runs before the node's daemon has *claimed* it: it alone can ask the store whether another node
// runs it. Who wakes asks each time; while the node has the right the daemon answers from memory. docs/decisions/0008.

// right is the daemon's answer that the workload may run here.
type right struct {
	alone          bool   // there is no store to ask: the identity is the node's own
	epoch          uint64 // what it runs under
	stored         []version
	former         string // node whose claim was over
	received, from string // where a snapshot is that node from has sent; "": none, or it is taken in
	whole          bool   // the newest snapshot is all of the workload
	leased         bool   // it ends with the node's lease:
	lease          rights.Lease

	unconfirmed bool
}

// highest is the highest sequence that anybody is known to have counted to.
func (r *right) highest() (n uint64) {
	for _, v := range r.stored {
		n = max(n, v.sequence)
	}
	return n
}

// unclaimedError says that the right could not be had in time. Nothing is lost: what sleeps sleeps on.
type unclaimedError struct{ error }

func (e *unclaimedError) Unwrap() error { return e.error }

// overtakenError says that the node's own snapshot is not the newest, or not all of the workload.
type overtakenError struct{}

func (overtakenError) Error() string { return "the node's snapshot is not the newest" }

const (
	// claimCall bounds one question to the daemon, which changes the store for it.
	claimCall = 10 * time.Second
	// unusedCall bounds telling it that nothing ran: a container's end may wait for that.
	unusedCall = 2 * time.Second
	// firstClaim is between the first questions, which grow rarer slowly: a workload that comes from another node is let go of within a second or two.
	firstClaim = 40 * time.Millisecond
	// claimShare is the part of a wake's time in which the right may come: what follows needs some, too.
	claimShare = 0.75
)

// claimWithin bounds ctx to the time in which the right is worth having.
func claimWithin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(float64(time.Until(deadline))*claimShare))
}

// claim asks until the right is given, or refused for good (*stopError), or ctx ends (*unclaimedError). waits is told why it has to.
func (w *Workload) claim(ctx context.Context, waits func(error)) (*right, error) {
	for wait := firstClaim; ; wait = min(wait*5/4, lastAsk) {
		r, err := w.tryClaim(ctx)
		if err == nil {
			return r, nil
		}
		var stop *stopError
		if errors.As(err, &stop) {
			return nil, err
		}
		if ctx.Err() == nil {
			waits(err)
		}
		if !pause(ctx, wait) {
			return nil, &unclaimedError{fmt.Errorf("it may not run here now: %w", err)}
		}
	}
}

func (w *Workload) tryClaim(ctx context.Context) (*right, error) {
	ctx, cancel := context.WithTimeout(ctx, claimCall)
	defer cancel()
	a, err := w.askRight(ctx, w.claimRequest())
	switch {
	case err != nil && !w.mayBeShared():
		return &right{alone: true, whole: true}, nil
	case err != nil:
		return nil, fmt.Errorf("the node's daemon can't be asked whether another node runs it: %w; start hibernated", err)
	}
	w.tiered.Store(w.tiered.Load() || a.GetClass() != rights.NoStore)
	switch a.GetClass() {
	case "":
		return w.granted(a)
	case rights.NoStore:
		return &right{alone: true, whole: true}, nil
	case rights.Unavailable, rights.Owned:
		return nil, errors.New(a.GetMessage())
	}
	return nil, &stopError{errors.New(a.GetMessage())}
}

// granted takes the right, unless its lease is as good as over.
func (w *Workload) granted(a *rightsv1.ClaimResponse) (*right, error) {
	r := &right{
		epoch: a.GetEpoch(), former: a.GetFormer(), whole: a.GetWhole(), leased: a.GetLeased(), unconfirmed: a.GetUnconfirmed(),
		received: a.GetReceived(), from: a.GetReceivedFrom(),
	}
	for _, g := range a.GetGenerations() {
		r.stored = append(r.stored, version{g.GetEpoch(), g.GetSequence()})
	}
	if r.leased {
		l, err := rights.ReadLease(w.config.RunDir)
		if err == nil && rights.SinceBoot() >= l.Sleep {
			err = errors.New("the node's lease is over: the store has not confirmed for long that the node lives")
		}
		if err != nil {
			return nil, err
		}
		r.lease = l
	}
	return r, nil
}

func (w *Workload) claimRequest() *rightsv1.ClaimRequest {
	r := &rightsv1.ClaimRequest{Workload: w.claimant(), Grant: w.nameGrant()}
	if s, err := w.local.Current(); err == nil {
		r.LocalSequence, r.LocalEpoch = s.Sequence(), s.Manifest().Epoch
	}
	return r
}

func (w *Workload) claimant() *rightsv1.Workload {
	return &rightsv1.Workload{Namespace: w.opts.Namespace, Id: w.opts.ID, Identity: w.identity}
}

// nameGrant is the name of what is asked for: the same until it is dropped.
func (w *Workload) nameGrant() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.grant == "" {
		w.grant, w.ran = rand.Text(), false
	}
	return w.grant
}

// runs notes that something is about to run.
func (w *Workload) runs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran = true
}

// mayBeShared says whether other nodes may have the identity, too, for all that is known without the daemon.
func (w *Workload) mayBeShared() bool {
	if w.config.Store != "" || w.tiered.Load() {
		return true
	}
	if head, err := w.local.Head(); err == nil && head.Epoch > 0 {
		return true
	}
	_, err := rights.ReadLease(w.config.RunDir)
	return !errors.Is(err, rights.ErrNoLease)
}

// askDaemon is askRight but in tests.
func (w *Workload) askDaemon(ctx context.Context, r *rightsv1.ClaimRequest) (a *rightsv1.ClaimResponse, err error) {
	err = w.withDaemon(ctx, func(c rightsv1.TTRPCRightsService) error {
		a, err = c.Claim(ctx, r)
		return err
	})
	return a, err
}

// tellDaemon is tellUnused but in tests.
func (w *Workload) tellDaemon(ctx context.Context, r *rightsv1.UnusedRequest) error {
	return w.withDaemon(ctx, func(c rightsv1.TTRPCRightsService) error {
		_, err := c.Unused(ctx, r)
		return err
	})
}

func (w *Workload) withDaemon(ctx context.Context, do func(rightsv1.TTRPCRightsService) error) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.config.APISocket())
	if err != nil {
		return err
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	return do(rightsv1.NewTTRPCRightsClient(c))
}

// hasRight says whether the workload may run.
func (w *Workload) hasRight() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.identity == "" || w.right != nil
}

// take has the workload be under a right.
func (w *Workload) take(r *right) {
	w.local.Under(r.epoch, r.highest())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.right = r
	w.epoch = max(w.epoch, r.epoch)
	if r.leased && !w.leaseWatched {
		w.leaseWatched = true
		w.background.Go(func() { w.watchLease(r.lease) })
	}
}

// takeRight is the step of a wake that asks for the right, unless it is there.
func (w *Workload) takeRight(t *transition) error {
	if w.hasRight() {
		return nil
	}
	return t.step("right", func(ctx context.Context) error {
		ctx, cancel := claimWithin(ctx)
		defer cancel()
		r, err := w.claim(ctx, w.waitingFor(t, "for the right to run"))
		w.mu.Lock()
		w.waits = ""
		w.mu.Unlock()
		if err != nil {
			return err
		}
		w.take(r)
		if r.unconfirmed {
			t.remark("it was not confirmed that no other node runs it (fencing = relaxed)")
		}
		return nil
	})
}

// mayStartCold says whether the workload may run afresh; a right that a wake has not asked for yet is asked for once.
func (w *Workload) mayStartCold() error {
	if w.hasRight() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimCall)
	defer cancel()
	r, err := w.tryClaim(ctx)
	if err != nil {
		return &unclaimedError{fmt.Errorf("it may not run here now: %w", err)}
	}
	w.take(r)
	if r.received != "" {
		return &unclaimedError{fmt.Errorf("its snapshot has come from node %s meanwhile: wake it again", r.from)}
	}
	return nil
}

// dropRight forgets the right of a workload that doesn't run: the daemon gives it away once the store has the snapshot, or at once when nothing
// has run under it. The caller holds w.mu.
func (w *Workload) dropRight() {
	grant, unused := w.grant, !w.ran
	w.right, w.grant = nil, ""
	if grant == "" || !unused {
		return
	}
	w.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), unusedCall)
		defer cancel()
		if err := w.tellUnused(ctx, &rightsv1.UnusedRequest{Workload: w.claimant(), Grant: grant}); err != nil {
			w.opts.Log.Info("the node's daemon keeps a right that was not used, until the workload sleeps anew or is deleted", "error", err)
		}
	})
}

// heedRight adds to a survey what the right tells, where there is one.
func (w *Workload) heedRight(view *survey) {
	w.mu.Lock()
	r := w.right
	w.mu.Unlock()
	if r == nil {
		return
	}
	head, _ := w.local.Head()
	view.heed(r, head)
}

// heed adds what the store has to what the node knows. A workload of which the node's head says that it ran here, and which has not run
// anywhere else since, has lost what it did after its snapshot.
func (s *survey) heed(r *right, head snapshot.Head) {
	if s.heeded {
		return
	}
	s.heeded = true
	here := version{head.Epoch, s.newest}
	var there version
	if len(r.stored) > 0 {
		there = r.stored[0]
	}
	if here.epoch == 0 { // from a time without a store
		here.epoch = there.epoch
	}
	if s.local.epoch == 0 {
		s.local.epoch = there.epoch
	}
	overtaken := there.compare(here) > 0
	if overtaken {
		if s.here {
			s.localBad = fmt.Errorf("the node's snapshot %d, of epoch %d, is stale: the store's newest is %d, of epoch %d", s.number, s.local.epoch, there.sequence, there.epoch)
		}
		s.here, s.newest = false, there.sequence
	}
	switch {
	case !r.whole:
		s.ranOn = "it ran on after its newest snapshot" + onNode(r.former) + ", and what it did since is lost"
	case !overtaken && head.State == snapshot.Awake:
		s.ranOn = "an earlier shim of it ended while it was awake: what it did after its newest snapshot is lost"
	}
}

func onNode(name string) string {
	if name == "" {
		return ""
	}
	return " on node " + name
}

// settleStart has the right before a container is started, and says whether there is something to restore. What there is decides which
// network the pod is told of, so nothing else comes before.
func (w *Workload) settleStart(ctx context.Context) (restore bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.config.WakeTimeout)
	defer cancel()
	r, err := w.claim(ctx, func(err error) { w.opts.Log.Warn("a start waits for the right to run", "error", err) })
	if err != nil {
		return false, fmt.Errorf("start the workload %s: %w: %w", w.identity, ErrPrecondition, err)
	}
	w.take(r)
	if w.export != nil {
		return true, nil
	}
	if _, err := w.takeIn(ctx); err != nil {
		return false, fmt.Errorf("start the workload %s: %w: %w", w.identity, ErrPrecondition, err)
	}
	view := w.surveyHere()
	w.heedRight(&view)
	there := view.here || view.localBad != nil && view.number != 0 || len(r.stored) > 0
	if !there {
		if view.ranOn != "" {
			w.lose(view.ranOn + ": it left no snapshot")
		}
		return false, w.startFrom(lifecycle.Awake)
	}
	if w.config.Restore == config.RestoreNever {
		if err := w.startFrom(lifecycle.Awake); err != nil {
			return false, err
		}
		return false, w.beginAfresh()
	}
	return true, w.startFrom(lifecycle.Asleep)
}

// startFrom says from which state the start goes on. What was created may have been killed while that waited for the right: then the container has ended, and nothing
// of it may begin any more.
func (w *Workload) startFrom(from lifecycle.Workload) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == lifecycle.Ended {
		return fmt.Errorf("start the workload %s: %w: the container has ended while it waited for the right to run", w.identity, ErrPrecondition)
	}
	w.state = from
	return nil
}

// surveyHere is a survey of the node alone.
func (w *Workload) surveyHere() (view survey) {
	view = survey{newest: w.remembered().Sequence, older: w.config.RestoreOlder}
	head, err := w.local.Head()
	if err == nil {
		view.number = head.Sequence
	}
	s, err := w.local.Current()
	if err == nil {
		view.local, view.here = version{s.Manifest().Epoch, s.Sequence()}, true
	} else if !errors.Is(err, snapshot.ErrNone) {
		view.localBad = err
	}
	return view
}

// beginAfresh sets aside what restore = never doesn't want.
func (w *Workload) beginAfresh() error {
	const why = "restore is never"
	w.lose(why)
	w.keepStored(w.newestStored())
	s, err := w.local.Current()
	if errors.Is(err, snapshot.ErrNone) || errors.Is(err, snapshot.ErrCorrupt) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.local.Quarantine(s, "it was not restored: "+why)
}

func (w *Workload) newestStored() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.right == nil || len(w.right.stored) == 0 {
		return 0
	}
	return w.right.stored[0].sequence
}

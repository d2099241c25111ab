package upload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Fence says what this node's claims are worth, and which other nodes are dead. See package fence.
type Fence interface {
	Term() (term string, ok bool)
	Need(ctx context.Context) (term string, err error)
	Judge(ctx context.Context, o durable.Owner) (fence.Verdict, error)
}

// Shims are those of this node.
type Shims interface {
	// State asks the shim that has a workload's identity what it does now; "" when there is none.
	State(ctx context.Context, namespace, identity string) (string, error)
	// Recorded is true while what a shim of the workload has made is not known to be taken down, whether that shim lives or not.
	Recorded(namespace, identity string) (bool, error)
	// Fence has them end the copies that run, or sleep, under an epoch that is over. found: there are some.
	Fence(ctx context.Context, namespace, identity string, epoch uint64, reason string) (found bool, err error)
}

// Local is the newest snapshot that a shim has.
type Local struct {
	Sequence, Epoch uint64
	Grant           string // names what is given, for Unused; "": it has no name
}

// Right is the right to run a workload on this node.
type Right struct {
	Epoch       uint64
	Generations []Has // the newest first
	Former      string
	Whole       bool
	Unconfirmed bool
	Leased      bool
	// Received is where a snapshot is that node From has sent, to be taken in before anything is restored; empty: none.
	Received, From string
}

// Has is a generation in the store.
type Has struct {
	Sequence uint64 `json:"sequence"`
	Epoch    uint64 `json:"epoch"`
}

// Errors of Claim, beside durable's and fence.ErrLapsed.
var (
	// ErrNoFence: the store can't keep two nodes from running one workload.
	ErrNoFence = errors.New("the store does not fence")
	// ErrOvertaken: another node has claimed the workload since.
	ErrOvertaken = errors.New("another node has claimed the workload since this snapshot was made")
	// ErrInvalid: the request is wrong.
	ErrInvalid = errors.New("not a workload with an identity")
)

// SilentError is a durable.ErrOwned that says what is known of the owner.
type SilentError struct {
	durable.OwnedError
	Verdict fence.Verdict
	Peer    error // why it didn't come by the peer path; nil: that was not tried
}

func (e *SilentError) Error() string {
	text := fmt.Sprintf("%s: node %s has claimed it (epoch %d)", e.Name, e.Owner.Node, e.Epoch)
	switch v := e.Verdict; {
	case v.Err != nil:
		return fmt.Sprintf("%s, and whether that lives can't be told: %v", text, v.Err)
	case v.Silent > 0:
		return fmt.Sprintf("%s, which has told nothing for %v, and counts as dead if it doesn't for another %v", text, v.Silent.Round(time.Second), v.DeadIn.Round(time.Second))
	}
	text += ", and lives: it can be woken here once it sleeps there"
	if e.Peer != nil {
		text += " (" + e.Peer.Error() + ")"
	}
	return text
}

// Unwrap makes it an ErrOwned.
func (e *SilentError) Unwrap() error { return &e.OwnedError }

// claimLimit bounds a Claim: its caller asks again.
const claimLimit = 9 * time.Second

// Claim asks for the right to run a workload with an identity here, before anything of it runs. Its shim holds the lock on the workload's
// directory until nothing runs any more.
func (u *Uploader) Claim(ctx context.Context, w api.Workload, local Local) (r Right, err error) {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	r, result, err := u.claimRight(ctx, w, local)
	u.opts.Meter.Claimed(result)
	log := u.opts.Log.With("workload", w.Namespace+"/"+w.Identity, "id", w.ID)
	switch {
	case err != nil:
		log.Debug("the right to run was not given", "result", result, "error", err)
	case result == claimTaken:
		log.Warn("a workload is taken over from a node that is dead", "node", r.Former, "epoch", r.Epoch, "whole", r.Whole)
	case result == claimUnconfirmed:
		log.Warn("a workload runs though the store can't be asked whether another node has it: fencing = relaxed", "epoch", r.Epoch)
	default:
		log.Debug("the right to run was given", "result", result, "epoch", r.Epoch)
	}
	return r, err
}

// Results of claims, for metrics.
const (
	claimHeld        = "held" // from memory
	claimConfirmed   = "confirmed"
	claimNew         = "new"
	claimTaken       = "taken-over"
	claimHanded      = "handed-over"
	claimUnconfirmed = "unconfirmed"
	claimOwned       = "owned"
	claimNoFence     = "no-store"
	claimFailed      = "failed"
)

func (u *Uploader) claimRight(ctx context.Context, w api.Workload, local Local) (Right, string, error) {
	if w.Identity == "" {
		return Right{}, claimFailed, ErrInvalid
	}
	if u.opts.Fence == nil {
		return Right{}, claimFailed, fmt.Errorf("%w: who this node is could not be noted: see hibernated's log", ErrNotOpen)
	}
	if c := u.Condition(); c.Fences == FencesNo {
		return Right{}, claimNoFence, fmt.Errorf("%w: %s", ErrNoFence, c.Why)
	}
	select {
	case <-u.ready:
	case <-ctx.Done():
		return Right{}, claimFailed, fmt.Errorf("%w: the daemon has only just begun", ErrNotOpen)
	}
	l := u.lineageOf(w)
	if err := l.take(ctx); err != nil {
		return Right{}, claimFailed, err
	}
	defer l.give()
	if err := u.movesAway(l); err != nil {
		return Right{}, claimOwned, err
	}
	u.noteClaimant(l, w)
	used := u.usedBefore(l, local.Grant)
	term, err := u.opts.Fence.Need(ctx)
	a := &asking{Uploader: u, l: l, local: local, was: u.localState(l)}
	result := claimHeld
	if err != nil || !u.holds(l, term) {
		if err == nil {
			result, err = a.ask(ctx, term)
		}
		if err != nil && u.opts.Relaxed && u.lastOwner(l) && storeAway(err) {
			result, err = claimUnconfirmed, a.unconfirmed()
		}
	}
	if errors.Is(err, durable.ErrOwned) {
		return Right{}, claimOwned, err
	}
	if err != nil {
		return Right{}, claimFailed, err
	}
	if now, ok := u.opts.Fence.Term(); result != claimUnconfirmed && (!ok || now != term) {
		return Right{}, claimFailed, fmt.Errorf("%w: it ended while the workload was claimed", fence.ErrLapsed)
	}
	if used && (result == claimHeld || result == claimConfirmed) {
		if err := a.ranOn(); err != nil {
			return Right{}, claimFailed, err
		}
	}
	if err := u.grant(l, local); err != nil {
		return Right{}, claimFailed, err
	}
	if result == claimUnconfirmed { // the store is asked as soon as it can be
		u.wake()
	}
	return a.right(), result, nil
}

// Unused is told that nothing has run under what was given by that name, and nothing will. What was given since stands.
func (u *Uploader) Unused(ctx context.Context, w api.Workload, grant string) error {
	if w.Identity == "" || grant == "" {
		return ErrInvalid
	}
	name := u.nameFor(w)
	u.mu.Lock()
	l := u.lineages[name]
	u.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	return u.ungrant(l, grant)
}

// usedBefore is true when something may have run under an earlier grant, of another request.
func (u *Uploader) usedBefore(l *lineage, grant string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return l.granted != nil && l.grant != "" && grant != "" && l.grant != grant
}

// ranOn has an answer from memory not say any more that the newest generation is all of what has run since, and left as little behind as there
// was before.
func (a *asking) ranOn() error {
	a.mu.Lock()
	r := a.l.record
	a.mu.Unlock()
	if r.Answer == nil || r.Answer.Was != a.was || !r.Answer.Whole || a.sleeps(r) {
		return nil
	}
	ans := *r.Answer
	ans.Whole = false
	return a.keep(func(r *record) { r.Answer = &ans })
}

// take has the lineage's right be dealt with by one caller at a time.
func (l *lineage) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another request is at the same workload: %w", context.Cause(ctx))
	}
}

func (l *lineage) give() { <-l.turn }

// lineageOf is that of a workload with an identity, which begins here where nothing is known of it.
func (u *Uploader) lineageOf(w api.Workload) *lineage {
	dir := snapshot.DirFor(u.opts.DataDir, w.Namespace, w.ID, w.Identity)
	name := u.nameFor(w)
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lineages[name]
	if l == nil {
		rel, err := filepath.Rel(u.opts.DataDir, dir)
		if err != nil {
			rel = filepath.Base(dir)
		}
		l = newLineage(record{Name: name, Place: u.place, Dir: filepath.ToSlash(rel), Namespace: w.Namespace, ID: w.ID, Identity: w.Identity})
		u.lineages[name] = l
	}
	return l
}

// noteClaimant takes who asks, which may be another container than the last, and forgets what another store has.
func (u *Uploader) noteClaimant(l *lineage, w api.Workload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	l.record.Namespace, l.record.ID, l.record.Identity = w.Namespace, w.ID, w.Identity
	l.record.Gone, l.record.Expired = time.Time{}, false
	u.forgetPlaceLocked(l)
	if !l.record.Destroyed.IsZero() { // it begins anew
		l.record.Destroyed = time.Time{}
		l.record.forgetClaim()
	}
}

// forgetPlaceLocked forgets what another store has.
func (u *Uploader) forgetPlaceLocked(l *lineage) {
	if l.record.Place == u.place {
		return
	}
	l.record.forgetClaim()
	l.record.Epoch, l.record.Since, l.record.Sequence, l.record.Has, l.record.Place = 0, 0, 0, nil, u.place
	l.rights, l.tier, l.claimed = nil, nil, false
}

// holds is true while the node has the right without asking: it claimed or confirmed it in the present term, and has not begun to give it
// away.
func (u *Uploader) holds(l *lineage, term string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return l.record.claims() && !l.record.Releasing && !l.record.Unconfirmed && l.record.Term == term && term != ""
}

// claims is true of a claim that is not known to be over.
func (r *record) claims() bool { return r.Claim != "" && !r.Released }

// forgetClaim is for one that is over.
func (r *record) forgetClaim() {
	r.Claim, r.Term, r.Claiming, r.Releasing, r.Released, r.Unconfirmed, r.Answer, r.Yielded = "", "", false, false, false, false, nil, nil
}

// lastOwner is true when nobody is known to have claimed after this node.
func (u *Uploader) lastOwner(l *lineage) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return l.record.Claim != "" && l.record.Epoch != 0 && l.record.Yielded == nil
}

// storeAway is true of errors after which nobody knows what the store would have said.
func storeAway(err error) bool {
	for _, kind := range []error{durable.ErrOwned, durable.ErrFenced, durable.ErrNodeTaken, durable.ErrRolledBack, durable.ErrDestroyed, durable.ErrWrongKey,
		durable.ErrForeign, store.ErrRefused, snapshot.ErrCorrupt, snapshot.ErrVersion} {
		if errors.Is(err, kind) {
			return false
		}
	}
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, ErrNotOpen) || errors.Is(err, context.DeadlineExceeded)
}

// AnyClaimed is true while the node has, or may have, claimed a workload with an identity.
func (u *Uploader) AnyClaimed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.lineages {
		if r := l.record; r.Identity != "" && (r.claims() || r.Claiming || r.Unconfirmed) {
			return true
		}
	}
	return false
}

// Tier is that of claims and beats: they don't wait for uploads.
func (u *Uploader) Tier() (*durable.Tier, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.quick == nil {
		return nil, u.notOpenLocked()
	}
	return u.quick, nil
}

// rightsOf is the lineage for claims. What was seen of it before is remembered.
func (u *Uploader) rightsOf(l *lineage) (*durable.Lineage, error) {
	t, err := u.Tier()
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if l.rights == nil {
		if l.rights, err = t.Lineage(l.record.Name); err != nil {
			return nil, err
		}
	}
	l.rights.Remember(l.record.Epoch, l.record.Sequence)
	return l.rights, nil
}

// asking is one Claim that the store is asked for, or answered from memory. The lineage's turn is held.
type asking struct {
	*Uploader
	l     *lineage
	local Local
	was   string // the local head
}

// looks is how often a head is looked at that others change meanwhile.
const looks = 5

// ask changes the head in the store.
func (a *asking) ask(ctx context.Context, term string) (result string, err error) {
	if a.Condition().Fences != FencesYes {
		return "", fmt.Errorf("%w: whether it can fence is not known yet", ErrNotOpen)
	}
	tier, err := a.rightsOf(a.l)
	if err != nil {
		return "", err
	}
	for range looks {
		if done, err := a.confirm(ctx, tier, term); done || err != nil {
			return claimConfirmed, err
		}
		result, err = a.acquire(ctx, tier, term)
		if !errors.Is(err, durable.ErrMoved) {
			return result, err
		}
	}
	return result, err
}

// confirm has an earlier claim be the present term's.
func (a *asking) confirm(ctx context.Context, tier *durable.Lineage, term string) (done bool, err error) {
	a.mu.Lock()
	r := a.l.record
	a.mu.Unlock()
	if !r.claims() {
		return false, nil
	}
	head, err := tier.Confirm(ctx, r.Claim)
	if errors.Is(err, durable.ErrFenced) || errors.Is(err, durable.ErrNone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, a.keep(func(r *record) {
		r.Term, r.Releasing, r.Unconfirmed, r.Claiming, r.Yielded = term, false, false, false, nil
		r.see(head)
		if r.Answer == nil || r.Answer.Was != a.was {
			r.Answer = &answer{Was: a.was, Whole: a.wholeHere(*r)}
		}
	})
}

// acquire claims what nobody has, what is this node's, or what a dead one has left.
func (a *asking) acquire(ctx context.Context, tier *durable.Lineage, term string) (result string, err error) {
	seen, err := tier.Look(ctx)
	if err != nil && !(errors.Is(err, durable.ErrDestroyed) && a.local.Sequence == 0) {
		return "", err
	}
	mine := tier.Mine(seen.Head)
	above := max(a.local.Epoch, a.headEpoch())
	if seen.Revision != 0 && above > seen.Epoch {
		return "", fmt.Errorf("%w: this node has epoch %d of it, and the store %d", durable.ErrRolledBack, above, seen.Epoch)
	}
	result = claimNew
	if seen.Owner != nil && !mine {
		verdict, err := a.opts.Fence.Judge(ctx, *seen.Owner)
		if err != nil {
			return "", err
		}
		if result = claimTaken; !verdict.Dead {
			result = claimHanded
			ok, why, err := a.yielded(ctx, seen.Head)
			if err != nil {
				return "", err
			}
			if !ok {
				return "", &SilentError{durable.OwnedError{Name: a.l.record.Name, Owner: *seen.Owner, Epoch: seen.Epoch}, verdict, why}
			}
		}
	}
	err = a.keep(func(r *record) {
		if r.Claiming = true; result == claimHanded && r.Received != nil {
			got := *r.Received
			got.Head = seen.Epoch
			r.Received = &got
		}
	})
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	a.l.tried = time.Now()
	a.mu.Unlock()
	head, err := tier.Take(ctx, seen, durable.Claim{TakeOver: result == claimTaken || result == claimHanded, Above: above})
	if errors.Is(err, durable.ErrMoved) {
		err = errors.Join(err, a.keep(func(r *record) { r.Claiming = false }))
	}
	if err != nil {
		return "", err
	}
	if result == claimHanded {
		a.told(seen.Head)
	}
	return result, a.keep(func(r *record) { a.taken(r, seen.Head, head, mine, term) })
}

// taken notes a claim that was made over another head.
func (a *asking) taken(r *record, before, now durable.Head, mine bool, term string) {
	nothing := before.Revision == 0 || before.State == durable.Deleted
	untouched := before.Epoch == r.Epoch && r.Epoch != 0 // since this node's last claim nobody else's
	follows := mine && r.Claiming && before.Epoch == r.Epoch+1
	ans := answer{Was: a.was}
	switch {
	case nothing:
		r.Since, ans.Whole = 0, true
	case r.handedOver(mine, before, now):
		r.Since, ans.Whole, ans.Former = r.Received.Epoch, true, r.Received.From
	case untouched || follows:
		ans.Whole = before.State == durable.Asleep || mine && a.wholeHere(*r)
	case mine: // this node's, and it doesn't know of what
		r.Since, ans.Whole = now.Epoch, false
	default:
		r.Since, ans.Whole = now.Epoch, before.State == durable.Asleep && before.Owner == nil
		if ans.Former = before.Last; before.Owner != nil {
			ans.Former = before.Owner.Node
		}
	}
	r.countReceived(now)
	r.forgetClaim()
	r.Claim, r.Epoch, r.Term, r.Answer, r.Place = now.Owner.Claim, now.Epoch, term, &ans, a.place
	r.Gone, r.Destroyed = time.Time{}, time.Time{}
	r.see(now)
	a.l.claimed = false // for uploads it is another one, and what an earlier one has made final is not
	a.l.final, a.l.err, a.l.failures, a.l.next = false, nil, 0, time.Time{}
}

// see notes what the store has.
func (r *record) see(head durable.Head) {
	r.Has = r.Has[:0:0]
	for _, g := range head.Generations[:min(len(head.Generations), hasKept)] {
		r.Has = append(r.Has, Has{g.Sequence, g.Epoch})
	}
	if g, ok := head.Newest(); ok && g.Sequence > r.Sequence {
		r.Sequence, r.Committed, r.Image, r.Sent = g.Sequence, g.Created, g.Image, g.Sent
	}
}

// hasKept bounds what is remembered of generations.
const hasKept = 8

// keepRecord changes the record, on the disk first.
func (u *Uploader) keepRecord(l *lineage, change func(r *record)) error {
	u.saving.Lock()
	defer u.saving.Unlock()
	u.mu.Lock()
	r := l.record
	change(&r)
	u.mu.Unlock()
	if err := u.save(r); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	before := l.record.Received
	change(&l.record)
	if before != nil && l.record.Received == nil {
		u.removeReceived(l.record.Name)
	}
	if got := l.record.Received; got != nil && got.Counts && l.takeInAt.IsZero() {
		l.takeInAt = time.Now().Add(takeInAfter)
		u.wake()
	}
	return nil
}

func (a *asking) keep(change func(r *record)) error { return a.keepRecord(a.l, change) }

// unconfirmed is the last owner's right while the store is away.
func (a *asking) unconfirmed() error {
	return a.keep(func(r *record) {
		r.Unconfirmed = true
		if r.Answer == nil || r.Answer.Was != a.was {
			r.Answer = &answer{Was: a.was, Whole: r.Released && !r.Releasing || a.wholeHere(*r)}
		}
	})
}

// wholeHere is true when the local snapshot is all of a workload that is this node's.
func (a *asking) wholeHere(r record) bool {
	head, err := snapshot.ReadHead(a.dirOf(r))
	if err != nil || head.State != snapshot.Asleep || head.Sequence != a.local.Sequence {
		return false
	}
	return len(r.Has) == 0 || r.Has[0].Epoch < a.local.Epoch || r.Has[0].Epoch == a.local.Epoch && r.Has[0].Sequence <= a.local.Sequence ||
		a.local.Epoch == 0 && r.Has[0].Sequence <= a.local.Sequence
}

// right is what the record says. What was found out when the claim was made counts until something has run.
func (a *asking) right() Right {
	a.mu.Lock()
	r := a.l.record
	a.mu.Unlock()
	out := Right{Epoch: r.Epoch, Generations: slices.Clone(r.Has), Unconfirmed: r.Unconfirmed, Leased: !a.opts.Relaxed}
	switch unchanged := r.Answer != nil && r.Answer.Was == a.was; {
	case !unchanged && a.wholeHere(r):
		out.Whole = true
	case r.Answer != nil && (unchanged || a.sleeps(r)): // asleep without a newer snapshot: it has not come to run
		out.Former, out.Whole = r.Answer.Former, r.Answer.Whole
	}
	if got := r.Received; got != nil && got.Counts && !got.in(a.local.Sequence, a.local.Epoch) {
		out.Received, out.From = a.receivedDir(r.Name), got.From
		if got.Whole {
			out.Whole, out.Former = true, got.From
		}
	}
	return out
}

func (a *asking) sleeps(r record) bool {
	head, err := snapshot.ReadHead(a.dirOf(r))
	return err == nil && head.State == snapshot.Asleep
}

// headEpoch is the highest that the node has seen, by its directory.
func (a *asking) headEpoch() uint64 {
	a.mu.Lock()
	dir := a.dirOf(a.l.record)
	a.mu.Unlock()
	head, _ := snapshot.ReadHead(dir) // none, or one that can't be read, has seen nothing
	return head.Epoch
}

// localState tells the states of a workload's directory apart.
func (u *Uploader) localState(l *lineage) string {
	u.mu.Lock()
	dir := u.dirOf(l.record)
	u.mu.Unlock()
	head, err := snapshot.ReadHead(dir)
	if err != nil {
		return "none"
	}
	return fmt.Sprintf("%s %d %d %s", head.State, head.Epoch, head.Sequence, head.Time.Format(time.RFC3339Nano))
}

// claimedTier is the lineage to upload to, under the claim that a shim has asked for. What has slept since before there was a store is
// claimed for the upload.
func (u *Uploader) claimedTier(ctx context.Context, l *lineage) (*durable.Lineage, error) {
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.give()
	u.mu.Lock()
	u.forgetPlaceLocked(l)
	r, keep := l.record, u.keepLocked(l)
	u.mu.Unlock()
	if r.Claim == "" {
		if err := u.claimFirst(ctx, l); err != nil {
			return nil, err
		}
		u.mu.Lock()
		r = l.record
		u.mu.Unlock()
	}
	tier, err := u.handle(r.Name, keep)
	if err != nil {
		return nil, err
	}
	tier.Remember(r.Epoch, r.Sequence)
	head, err := tier.Resume(ctx, r.Claim)
	if errors.Is(err, durable.ErrFenced) {
		return nil, errors.Join(err, u.overtakenBy(l, r, head))
	}
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l.tier, l.claimed = tier, true
	return tier, nil
}

// overtakenBy is lost, unless the claim was given up. The turn is held.
func (u *Uploader) overtakenBy(l *lineage, r record, head durable.Head) error {
	if r.Released || head.Owner == nil && head.Epoch == r.Epoch {
		return nil
	}
	return u.lost(l, head)
}

// claimFirst claims for a sleeper that no claim is known of, and that the store has never heard of. The turn is held.
func (u *Uploader) claimFirst(ctx context.Context, l *lineage) error {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	if u.opts.Fence == nil {
		return fmt.Errorf("%w: nobody can claim it", ErrInvalid)
	}
	head, err := snapshot.ReadHead(u.dirOf(r))
	if err != nil || head.State != snapshot.Asleep {
		return fmt.Errorf("it is not claimed, and doesn't sleep: %w", errNothing)
	}
	term, err := u.opts.Fence.Need(ctx)
	if err != nil {
		return err
	}
	tier, err := u.rightsOf(l)
	if err != nil {
		return err
	}
	seen, err := tier.Look(ctx)
	if err != nil {
		return err
	}
	a := &asking{Uploader: u, l: l, local: Local{Sequence: head.Sequence}, was: u.localState(l)}
	if seen.Revision != 0 && !tier.Mine(seen.Head) {
		return fmt.Errorf("%w: epoch %d: what this node has is kept here", ErrOvertaken, seen.Epoch)
	}
	_, err = a.acquire(ctx, tier, term)
	return err
}

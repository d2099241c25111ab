package upload

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// lineage is what is known of one. Its fields are guarded by Uploader.mu.
type lineage struct {
	record record
	local  uint64    // sequence of the snapshot that the node has; 0: none
	since  time.Time // since when the store has been without the newest; zero: it has it

	next     time.Time // of the next try
	failures int       // in a row
	err      error     // of the last try
	final    bool      // nothing that time mends
	busy     bool
	cancel   context.CancelCauseFunc // of what is under way; nil: nothing
	sending  uint64                  // sequence that is being uploaded
	moved    int64                   // bytes of it that were sent
	gaveUp   bool                    // the last one was given up for a newer one

	tier      *durable.Lineage
	claimed   bool
	collectAt time.Time // zero: there is nothing to collect

	hurry atomic.Bool // its upload leaves nothing to others

	expireNext time.Time // of the next try to destroy it

	// Of one with an identity.
	minding                                     bool             // somebody sees to its claim
	turn                                        chan struct{}    // held by who claims, confirms or releases
	rights                                      *durable.Lineage // for that
	granted                                     *uint64          // a shim may run it until it has made a snapshot above this; nil: none was asked for
	grant                                       string           // names what was granted last; "": it has no name
	unused                                      bool             // nothing has run under what was granted last
	tried                                       time.Time        // to claim it last
	restAt                                      time.Time        // when to look whether it may be released; zero: there is no reason to
	stopAt                                      time.Time        // when to have a copy ended that has no right any more; zero: there is none
	confirmNext                                 time.Time        // of the next try to confirm a claim
	reception                                   *reception       // what comes from another node; nil: nothing
	noRoomFor                                   string           // claim whose snapshot there was no room for
	noRoomUntil                                 time.Time        // when that is asked for again
	takeInAt                                    time.Time        // when to look whether what came is taken in; zero: there is no reason to
	yieldAt                                     time.Time        // when to look what came of a yield; zero: there is none
	heldBack                                    time.Time        // until then it isn't uploaded
	takeInFailures                              int              // in a row
	movingTo                                    string           // node that it is being moved to; "": it isn't
	movingUntil                                 time.Time
	restFailures, stopFailures, confirmFailures int // in a row
}

func newLineage(r record) *lineage { return &lineage{record: r, turn: make(chan struct{}, 1)} }

// pending is true when the store lacks something that may be sent.
func (l *lineage) pending() bool { return !l.since.IsZero() && !l.final }

// errReplaced ends an upload of what is no longer the newest.
var errReplaced = errors.New("a newer snapshot has replaced it")

func isNoHead(err error) bool { return errors.Is(err, snapshot.ErrNoHead) }

// look reads the head of a workload's directory, and notes what the store lacks.
func (u *Uploader) look(dir string, wishes Wishes) {
	head, err := snapshot.ReadHead(dir)
	if err != nil {
		if !isNoHead(err) {
			u.opts.Log.Debug("a head can't be read", "dir", dir, "error", err)
		}
		return
	}
	if head.Sequence == 0 || head.State == snapshot.Ended {
		return
	}
	name := nameOf(dir, head)
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lineages[name]
	if l == nil {
		rel, err := filepath.Rel(u.opts.DataDir, dir)
		if err != nil {
			return
		}
		l = newLineage(record{
			Name: name, Place: u.place, Dir: filepath.ToSlash(rel), Namespace: head.Namespace, ID: head.ID, Identity: head.Identity, Lineage: head.Lineage,
		})
		u.lineages[name] = l
	}
	if head.Identity != "" { // its containers come and go, and so may its directory
		l.record.Namespace, l.record.ID, l.record.Lineage = head.Namespace, head.ID, head.Lineage
	}
	if !l.record.Destroyed.IsZero() { // it begins anew
		l.record.Destroyed, l.record.Sequence, l.record.Gone, l.record.Has = time.Time{}, 0, time.Time{}, nil
		l.record.forgetClaim()
	}
	if wishes.Keep > 0 {
		l.hurry.Store(wishes.Stopped)
		l.record.Keep, l.record.DeleteAfter = wishes.Keep, wishes.DeleteAfter
		l.record.Expired = false // it is there, and sleeps
	}
	u.noteLocked(l, dir, head.Sequence)
	u.mayRestLocked(l)
}

// noteLocked takes a sequence that the node has.
func (u *Uploader) noteLocked(l *lineage, dir string, sequence uint64) {
	if sequence > l.local && l.final && (errors.Is(l.err, errDamaged) || errors.Is(l.err, ErrQuota) || l.record.Identity != "") {
		l.final, l.err = false, nil // it was that snapshot's
	}
	if sequence > l.local {
		l.failures, l.next = 0, time.Time{}
	}
	l.local = sequence
	switch {
	case sequence <= l.record.Sequence && l.record.Place == u.place, sequence <= l.record.Handed:
		l.since = time.Time{}
	case l.since.IsZero():
		l.since = writtenAt(dir, sequence)
	}
	if l.cancel != nil && l.sending != 0 && l.sending < sequence && !l.gaveUp {
		l.gaveUp = true
		l.cancel(errReplaced)
	}
}

// writtenAt is when a snapshot was written; now, when it isn't there any more.
func writtenAt(dir string, sequence uint64) time.Time {
	st, err := os.Stat(filepath.Join(dir, strconv.FormatUint(sequence, 10), "manifest.json"))
	if err != nil {
		return time.Now()
	}
	return st.ModTime()
}

// final is true of errors that time doesn't mend.
func final(err error) bool {
	for _, kind := range []error{durable.ErrFenced, durable.ErrDiverged, durable.ErrStale, durable.ErrDestroyed, errDamaged, ErrQuota, ErrOvertaken} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// pauseAfter so many failures: twice as long each time, and not all in the same moment.
func (u *Uploader) pauseAfter(failures int) time.Duration {
	d := min(u.opts.MostPause, u.opts.FirstPause<<min(failures-1, 16))
	return d/2 + rand.N(d/2+1)
}

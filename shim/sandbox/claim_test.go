package sandbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/rights"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// claimant is a workload with an identity, a place for its snapshots, and nothing else.
func claimant(t *testing.T, answers ...*rightsv1.ClaimResponse) *Workload {
	t.Helper()
	w := bare()
	w.identity, w.config.RunDir, w.config.WakeTimeout = "db", t.TempDir(), time.Second
	local, err := snapshot.OpenLocal(t.TempDir(), snapshot.WithOwner("n", "c", "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	w.local = local
	w.askRight = func(context.Context, *rightsv1.ClaimRequest) (*rightsv1.ClaimResponse, error) {
		if len(answers) == 0 {
			return nil, errors.New("nobody is there")
		}
		a := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		return a, nil
	}
	return w
}

func TestClaims(t *testing.T) {
	owned := &rightsv1.ClaimResponse{Class: rights.Owned, Message: "node-b has it"}
	given := &rightsv1.ClaimResponse{Epoch: 3, Whole: true, Generations: []*rightsv1.Generation{{Sequence: 9, Epoch: 2}, {Sequence: 8, Epoch: 2}}}
	for what, c := range map[string]struct {
		answers []*rightsv1.ClaimResponse
		store   string
		given   bool
		alone   bool
		stop    bool
		unheld  bool
	}{
		"it is given":                                   {answers: []*rightsv1.ClaimResponse{given}, given: true},
		"it is another's, and then given":               {answers: []*rightsv1.ClaimResponse{owned, owned, given}, given: true},
		"it is another's":                               {answers: []*rightsv1.ClaimResponse{owned}, unheld: true},
		"the store is away":                             {answers: []*rightsv1.ClaimResponse{{Class: rights.Unavailable, Message: "away"}}, unheld: true},
		"a person must look":                            {answers: []*rightsv1.ClaimResponse{{Class: rights.Refused, Message: "no"}}, stop: true},
		"a class of the future":                         {answers: []*rightsv1.ClaimResponse{{Class: "new", Message: "no"}}, stop: true},
		"there is no store":                             {answers: []*rightsv1.ClaimResponse{{Class: rights.NoStore}}, given: true, alone: true},
		"there is no daemon, nor a store":               {given: true, alone: true},
		"there is no daemon, and a store":               {store: "file:///s", unheld: true},
		"it is given with a lease that nobody can read": {answers: []*rightsv1.ClaimResponse{{Epoch: 1, Leased: true}}, unheld: true},
	} {
		t.Run(what, func(t *testing.T) {
			w := claimant(t, c.answers...)
			w.config.Store = c.store
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			defer cancel()
			r, err := w.claim(ctx, func(error) {})
			var stop *stopError
			var unheld *unclaimedError
			if (err == nil) != c.given || errors.As(err, &stop) != c.stop || errors.As(err, &unheld) != c.unheld {
				t.Fatalf("%+v, %v", r, err)
			}
			if err == nil && (r.alone != c.alone || !c.alone && (r.epoch != 3 || r.highest() != 9)) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A head that was claimed once, and a lease, tell of a store, too.
func TestWithoutTheDaemonAStoreIsRemembered(t *testing.T) {
	w := claimant(t)
	if w.mayBeShared() {
		t.Error("of nothing")
	}
	if err := rights.WriteLease(w.config.RunDir, rights.Lease{}); err != nil || !w.mayBeShared() {
		t.Errorf("by a lease: %v", err)
	}
	w = claimant(t)
	w.local.Under(4, 0)
	if err := w.local.SetState(t.Context(), snapshot.Awake); err != nil || !w.mayBeShared() {
		t.Errorf("by a head: %v", err)
	}
}

func TestWhatTheRightTells(t *testing.T) {
	own := version{3, 7}
	head := snapshot.Head{State: snapshot.Asleep, Epoch: 3, Sequence: 7}
	for what, c := range map[string]struct {
		right right
		head  snapshot.Head
		older bool
		want  choice
		err   string
	}{
		"nothing else":                    {right: right{whole: true}, head: head, want: choice{local: true}},
		"the same in the store":           {right: right{whole: true, stored: []version{{3, 7}}}, head: head, want: choice{local: true}},
		"an older one in the store":       {right: right{whole: true, stored: []version{{2, 6}}}, head: head, want: choice{local: true}},
		"a newer one of a later epoch":    {right: right{whole: true, stored: []version{{5, 9}, {3, 7}}}, head: head, want: choice{ask: true}},
		"one of a later epoch":            {right: right{whole: true, stored: []version{{5, 7}}}, head: head, want: choice{ask: true}},
		"it ran on elsewhere":             {right: right{former: "b"}, head: head, err: "on node b"},
		"it ran on elsewhere, and older":  {right: right{former: "b"}, head: head, older: true, want: choice{local: true, older: true}},
		"it ran on here":                  {right: right{whole: true}, head: snapshot.Head{State: snapshot.Awake, Epoch: 3, Sequence: 7}, err: "while it was awake"},
		"it ran on here, and then there":  {right: right{whole: true, stored: []version{{5, 9}}}, head: snapshot.Head{State: snapshot.Awake, Epoch: 3, Sequence: 7}, want: choice{ask: true}},
		"it ran here under a later claim": {right: right{whole: true, stored: []version{{3, 7}}}, head: snapshot.Head{State: snapshot.Asleep, Epoch: 4, Sequence: 7}, want: choice{local: true}},
		"from a time without a store":     {right: right{whole: true, stored: []version{{1, 7}}}, head: snapshot.Head{State: snapshot.Asleep, Sequence: 7}, want: choice{local: true}},
	} {
		view := survey{newest: 7, number: 7, local: own, here: true, older: c.older}
		if c.head.Epoch == 0 {
			view.local.epoch = 0
		}
		view.heed(&c.right, c.head)
		got := view.choose()
		if (got.err != nil) != (c.err != "") || got.err != nil && !strings.Contains(got.err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", what, got.err, c.err)
			continue
		}
		if got.err = nil; got != c.want {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

// A lease that is over ends a workload that can't sleep, and not one that sleeps, nor one whose lease was renewed in time.
func TestKeepLease(t *testing.T) {
	w := claimant(t)
	write := func(sleep, end time.Duration) {
		now := rights.SinceBoot()
		if err := rights.WriteLease(w.config.RunDir, rights.Lease{Sleep: now + sleep, End: now + end}); err != nil {
			t.Fatal(err)
		}
	}
	var l rights.Lease
	write(time.Hour, time.Hour)
	w.right = &right{leased: true}
	if wait := w.keepLease(t.Context(), &l); wait != leaseLook {
		t.Errorf("far from its end it is looked at after %v", wait)
	}
	write(100*time.Millisecond, time.Hour)
	if wait := w.keepLease(t.Context(), &l); wait > 100*time.Millisecond || wait <= 0 {
		t.Errorf("near its end it is looked at after %v", wait)
	}
	w.right = nil // it doesn't run
	write(-time.Hour, -time.Hour)
	if wait := w.keepLease(t.Context(), &l); wait != leaseLook || w.fencing {
		t.Errorf("a sleeper is looked at after %v, ended: %t", wait, w.fencing)
	}
}

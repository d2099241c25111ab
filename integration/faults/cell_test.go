package faults

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/failpoint"
	"github.com/hibernate-runtime/hibernate/integration/stepper"
)

// The transitions that are walked.
const (
	toSleep = "hibernate"
	toWake  = "wake"
)

// A cell is one fault in one step, and what must come of it.
type cell struct {
	step, fault string
	rules       []failpoint.Rule // what becomes of runsc's calls
	at          func(*app)       // done while the shim is held in the step, which runs on
	after       string           // at is done at the end of this step instead, and then nothing runs
	first       func(*app)       // done before the transition
	later       func(*app)       // done as soon as the transition has ended well, as far as its caller can tell
	mend        func(*app)       // done when the transition is over
	twice       bool             // a fault that is there for as long as it is not mended: a second try must end alike

	outcome string // of the transition
	told    string // in its detail
	remedy  string // in its detail, too
	state   string // of the workload afterwards; "ended" is the end of the task, with the status in told
	lost    string // why the data can't be kept; empty: it is kept
}

func (c cell) name() string { return c.step + ", " + c.fault }

// walk has an app walk cells, one after the other, and compares with the table.
func (a *app) walk(kind string, cells []cell) {
	a.Sleep() // what is made once, as listeners, is there afterwards
	a.GoesOn()
	a.Awake()
	a.wokeFlat()
	before, open := a.inventory(), a.Descriptors()
	for _, c := range cells {
		t, ok := a.T, false
		t.Run(kind+"/"+c.name(), func(t *testing.T) {
			a.lane.T = t
			defer func() { a.lane.T = a.home }()
			a.meet(kind, c)
			a.sameAs(before)
			if c.state == "ended" { // another shim, which is to have been asleep, too
				a.Sleep()
				a.GoesOn()
				a.Awake()
				open = max(open, a.Descriptors())
			}
			a.noMoreOpen(open)
			ok = !t.Failed()
		})
		if !ok { // what follows would fail for this cell's reasons
			return
		}
	}
}

// wokeFlat looks that the last wake was one whose memory came while the sandbox ran, as it is unless something is wrong.
func (a *app) wokeFlat() {
	a.Helper()
	a.eventually("the memory came through the sidecar", func() bool {
		s, err := a.w.Status(a.ctx(), a.ID)
		a.must(err)
		return slices.ContainsFunc(s.GetLastWake().GetSteps(), func(s *shimv1.Step) bool { return s.GetName() == "load" })
	})
}

// meet walks one cell.
func (a *app) meet(kind string, c cell) {
	a.Helper()
	if kind == toWake {
		a.Sleep()
	} else if a.Awake(); c.after != "" { // nothing may undo it before that: whoever talked has ended by the second one
		a.Sleep()
		_, err := a.w.Wake(a.ctx(), a.ID)
		a.must(err)
	}
	record := a.attempt(kind, c)
	a.judge(kind, c, record)
	if c.twice && c.state != "ended" {
		c.at = nil
		a.judge(kind, c, a.attempt(kind, c))
	}
	a.must(a.runsc.Set(a.ID))
	if c.mend != nil {
		c.mend(a)
	}
	ran.cells.Add(1)
	switch {
	case c.state == "ended":
		ran.ended.Add(1)
		a.again()
		a.must(a.w.WaitPort(a.ctx(), a.Address(8080)))
	case c.state == "blocked":
		if _, err := a.w.Wake(a.ctx(), a.ID); err != nil {
			a.Fatalf("mended, it does not wake: %v", err)
		}
	}
	if c.lost != "" {
		ran.lost.Add(1)
		a.IsNew()
	} else {
		ran.kept.Add(1)
		a.GoesOn()
	}
	a.Awake()
}

// attempt makes the transition happen once, with the cell's fault, and returns its record.
func (a *app) attempt(kind string, c cell) *shimv1.Transition {
	a.Helper()
	a.must(a.runsc.Set(a.ID, c.rules...))
	var hold *stepper.Stepper
	if c.at != nil {
		hold = stepper.Hold(a.T, a.w.Path(filepath.Join(a.Bundle(), "hibernate")))
	}
	if c.first != nil {
		c.first(a)
	}
	answers := a.keepAsking(c.state == "ended")
	done := make(chan error, 1)
	go func() { done <- a.transit(kind, c.outcome == "aborted") }()
	if hold != nil {
		if c.after != "" {
			hold.Until(c.after)
			hold.Over()
		} else {
			hold.Until(c.step)
		}
		c.at(a)
		hold.Release()
	}
	err := <-done
	if c.later != nil {
		c.later(a)
		if c.state == "awake" { // it may sleep and wake for a new link meanwhile
			a.Awake()
		}
	}
	if c.state == "ended" {
		a.stopped(c.told)
	}
	answers()
	s, e := a.w.Status(a.ctx(), a.ID)
	a.must(e)
	record := s.GetLastHibernate()
	if kind == toWake {
		record = s.GetLastWake()
	}
	if well := slices.Contains([]string{"slept", "restored", "cold-started"}, record.GetOutcome()); well != (err == nil) {
		a.Errorf("%s (%s), and the caller gets %v", record.GetOutcome(), record.GetDetail(), err)
	}
	return record
}

// stopped waits until the task has ended with a status.
func (a *app) stopped(status string) {
	a.Helper()
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	if got := fmt.Sprint(a.ExitStatus()); got != status {
		a.Errorf("the task ended with status %s, want %s", got, status)
	}
}

// transit asks for the transition; again where traffic has undone it, which is no fault.
func (a *app) transit(kind string, aborts bool) error {
	for {
		var err error
		if kind == toWake {
			_, err = a.w.Wake(a.ctx(), a.ID)
			return err
		}
		_, err = a.w.Hibernate(a.ctx(), a.ID)
		if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "somebody talks") || aborts {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// judge compares what came of a cell with the table.
func (a *app) judge(kind string, c cell, record *shimv1.Transition) {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	if !strings.Contains(c.outcome, record.GetOutcome()) || c.state != "ended" && !strings.Contains(record.GetDetail(), c.told) {
		a.Errorf("told as %s: %q; want %s: %q", record.GetOutcome(), record.GetDetail(), c.outcome, c.told)
	}
	if !strings.Contains(record.GetDetail(), c.remedy) {
		a.Errorf("told as %q, which doesn't say: %s", record.GetDetail(), c.remedy)
	}
	if s.GetState() != c.state {
		a.Errorf("it is %s, want %s", s.GetState(), c.state)
	}
	want := 0
	for _, r := range c.rules {
		want += max(r.Times, 1)
	}
	if len(c.rules) == 0 {
		return
	}
	if hits, err := a.runsc.Hits(a.ID); err != nil || hits != want {
		a.Errorf("%d faults have happened, not %d: %v", hits, want, err)
	}
}

// answerWithin is how long State may take on a busy machine, whatever is going on.
const answerWithin = time.Second

// keepAsking asks the shim for the state, as containerd does, until the returned function is called.
func (a *app) keepAsking(ends bool) (stop func()) {
	a.Helper()
	task, hangUp := a.Task()
	ctx, cancel := context.WithCancel(a.ctx())
	done := make(chan error, 1)
	go func() {
		var bad error
		for ctx.Err() == nil && bad == nil {
			begin := time.Now()
			r, err := task.State(ctx, &taskv3.StateRequest{ID: a.ID})
			took := time.Since(begin)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				bad = err
			case took > answerWithin:
				bad = fmt.Errorf("an answer took %v", took)
			case r.GetStatus() != tasktypes.Status_RUNNING && !ends:
				bad = fmt.Errorf("it is told as %v", r.GetStatus())
			}
			time.Sleep(10 * time.Millisecond)
		}
		done <- bad
	}()
	return func() {
		a.Helper()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			a.Errorf("State meanwhile: %v", err)
		}
		hangUp()
	}
}

// signalSandbox makes something that is done to the sandbox.
func signalSandbox(s syscall.Signal) func(*app) {
	return func(a *app) {
		a.Helper()
		pid := a.Sandbox()
		if pid == 0 {
			a.Fatal("there is no sandbox")
		}
		a.must(syscall.Kill(pid, s))
		if s != syscall.SIGKILL {
			return
		}
		a.eventually("the shim reaps the sandbox", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		time.Sleep(50 * time.Millisecond) // it tells itself
	}
}

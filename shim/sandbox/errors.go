package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Causes that end a transition early.
var (
	// ErrActivity: somebody talked to the workload while it went to sleep.
	ErrActivity = errors.New("somebody talks to the workload")
	// ErrKilled: the workload was killed during a transition.
	ErrKilled = errors.New("the workload was killed")
	// ErrExited: the sandbox ended by itself during a transition.
	ErrExited = errors.New("the sandbox ended")
)

// Errors that callers tell apart.
var (
	// ErrNotFound: no such container or exec.
	ErrNotFound = errors.New("not found")
	// ErrExists: an exec or container of that id exists.
	ErrExists = errors.New("already exists")
	// ErrBlocked: an earlier wake failed, and on-restore-failure = block keeps the snapshot until a person decides.
	ErrBlocked = errors.New("the workload is blocked: its last wake failed and on-restore-failure is block; " +
		"see hibernatectl inspect, then hibernatectl wake to try again or delete the container")
	// ErrPaused: a user has paused the container while it slept, so nothing wakes it.
	ErrPaused = errors.New("a user has paused the container: resume it first")
	// ErrPrecondition: the call is not possible in the present state.
	ErrPrecondition = errors.New("not possible now")
)

// RefusedError says why a workload can't hibernate, or can't do what Verb says. Nothing was changed.
type RefusedError struct {
	Reasons []*shimv1.Reason
	Verb    string // "" is hibernate
	Cause   error  // ErrActivity, or none
}

// refusedActive is about packets that came after the workload was found idle.
func refusedActive(packets uint64) error {
	detail := fmt.Sprintf("%d packets have come or gone since it was found idle", packets)
	return &RefusedError{Reasons: []*shimv1.Reason{reason("active", detail)}, Cause: ErrActivity}
}

func (e *RefusedError) Unwrap() error { return e.Cause }

func (e *RefusedError) Error() string {
	details := make([]string, 0, len(e.Reasons))
	for _, r := range e.Reasons {
		details = append(details, r.GetDetail()+" ["+r.GetCode()+"]")
	}
	verb := cmp.Or(e.Verb, "hibernate")
	return "can't " + verb + ": " + strings.Join(details, "; ")
}

// AbortedError says that a hibernation was undone. The workload runs on.
type AbortedError struct{ Cause error }

func (e *AbortedError) Error() string { return "hibernation aborted: " + e.Cause.Error() }

func (e *AbortedError) Unwrap() error { return e.Cause }

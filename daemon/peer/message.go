package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Ask is a request about a workload.
type Ask struct {
	Node        string `json:"node"`        // who asks
	Incarnation string `json:"incarnation"` // of that node
	Namespace   string `json:"namespace"`   // containerd's
	Identity    string `json:"identity"`    // the workload's
	// Owner is what the head says.
	Owner    durable.Owner `json:"owner"`              // reserve, pull: the node that is asked, without a claim
	Sequence uint64        `json:"sequence,omitempty"` // yield, taken
	Wait     time.Duration `json:"wait,omitempty"`     // fetch, pull: at most; reserve: for so long
	// Of reserve: what a snapshot of the workload needs, and how much memory it takes.
	Needs eligible.Ability `json:"needs,omitzero"`
	Bytes uint64           `json:"bytes,omitempty"`
}

// Pulled is what a pull has come to.
type Pulled struct {
	Epoch    uint64 `json:"epoch"`              // of the claim that the node has now
	Sequence uint64 `json:"sequence,omitempty"` // of the snapshot that came by the peer path; 0: the store has it
	Woken    string `json:"woken,omitempty"`    // the container that it goes on in; empty: none waits for it
	WakeMs   int64  `json:"wake_ms,omitempty"`
	Detail   string `json:"detail,omitempty"` // why a container that waits could not be woken
}

func (a Ask) workload() string { return a.Namespace + "/" + a.Identity }

// Refusal is an answer that is an error.
type Refusal struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

// Classes of refusals.
const (
	classRuns        = "runs"
	classRefused     = "refused"
	classIdentity    = "identity"
	classUnavailable = "unavailable"
)

// Errors that a caller decides on.
var (
	// ErrUnavailable: the other daemon can't be asked, or can't answer. The store is the way then.
	ErrUnavailable = errors.New("the peer path is of no use now")
	// ErrRuns: the workload is not asleep there, or no longer with the snapshot that was meant.
	ErrRuns = errors.New("it doesn't sleep there")
	// ErrRefused: the node doesn't take the workload.
	ErrRefused = errors.New("it can't go there")
)

// IdentityError says that somebody isn't who he should be. Nothing is fallen back to: a person must look.
type IdentityError struct{ What, Do string }

func (e *IdentityError) Error() string {
	return fmt.Sprintf("the peer path stops: %s; %s", e.What, e.Do)
}

// refusalOf an error.
func refusalOf(err error) Refusal {
	r := Refusal{Class: classUnavailable, Message: err.Error()}
	var identity *IdentityError
	switch {
	case errors.As(err, &identity):
		r.Class = classIdentity
	case errors.Is(err, ErrRuns):
		r.Class = classRuns
	case errors.Is(err, ErrRefused):
		r.Class = classRefused
	}
	return r
}

// answered is an error of a kind, as a node has told it.
type answered struct {
	node, message string
	kind          error
}

func (e *answered) Error() string { return "node " + e.node + ": " + e.message }

func (e *answered) Unwrap() error { return e.kind }

// err is the error that node has answered.
func (r Refusal) err(node string) error {
	switch r.Class {
	case classRuns:
		return &answered{node, r.Message, ErrRuns}
	case classRefused:
		return &answered{node, r.Message, ErrRefused}
	case classIdentity:
		return &IdentityError{What: fmt.Sprintf("node %s refuses this one: %s", node, r.Message), Do: "see docs/OPERATIONS.md, \"From node to node\""}
	}
	return &answered{node, r.Message, ErrUnavailable}
}

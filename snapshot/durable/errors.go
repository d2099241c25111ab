package durable

import (
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Errors that a caller decides on, beside snapshot's ErrCorrupt, ErrTruncated and ErrVersion and those of package store.
var (
	// ErrNone: the durable tier has no such lineage, or no such snapshot of it.
	ErrNone = errors.New("no snapshot in the durable tier")
	// ErrDestroyed: the lineage was deleted, and its key with it.
	ErrDestroyed = errors.New("snapshots were destroyed on purpose")
	// ErrNoKey: no key is configured.
	ErrNoKey = errors.New("no key for the durable tier")
	// ErrWrongKey: a key is configured, but it isn't the one.
	ErrWrongKey = errors.New("wrong key for the durable tier")
	// ErrForeign: an object that is whole stands where another one belongs.
	ErrForeign = errors.New("object belongs elsewhere")
	// ErrRolledBack: the head is older than one that this node has seen.
	ErrRolledBack = errors.New("head has been rolled back")
	// ErrOwned: somebody else has claimed the workload. See [OwnedError].
	ErrOwned = errors.New("workload is claimed by another node")
	// ErrNodeTaken: another machine has this node's name. See [NodeTakenError].
	ErrNodeTaken = errors.New("two nodes have one name")
	// ErrFenced: the epoch that this node has claimed is over; it must not run the workload. See [FencedError].
	ErrFenced = errors.New("fenced: the claimed epoch is over")
	// ErrDiverged: two different snapshots have the same sequence.
	ErrDiverged = errors.New("two different snapshots have one sequence")
	// ErrStale: the sequence is below one that was committed before.
	ErrStale = errors.New("snapshot is older than what the durable tier has")
	// ErrLimit: an upload would send more than its caller allows.
	ErrLimit = errors.New("upload is larger than it may be")
	// ErrFull: there are as many generations as a head may have.
	ErrFull = errors.New("too many generations")
	// ErrContended: others changed the head each time that this one tried.
	ErrContended = errors.New("head is changed by others too often")
	// ErrLeaseLost: a reader's lease was not written again in time; what it reads may be deleted.
	ErrLeaseLost = errors.New("lease of the reader is lost")
	// ErrInconsistent: what should be impossible stands in the store; nothing was deleted.
	ErrInconsistent = errors.New("durable tier is inconsistent")
)

// OwnedError says who has claimed the workload.
type OwnedError struct {
	Name  string
	Owner Owner
	Epoch uint64
}

func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s: %v: %s, epoch %d: hibernate it there first, or take it over on purpose once that node is known to be dead",
		e.Name, ErrOwned, e.Owner.Node, e.Epoch)
}

// Is makes it an ErrOwned.
func (e *OwnedError) Is(target error) bool { return target == ErrOwned }

// FencedError says which epoch counts now.
type FencedError struct {
	Name       string
	Mine, Head uint64
	Owner      *Owner
}

func (e *FencedError) Error() string {
	who := "nobody"
	if e.Owner != nil {
		who = e.Owner.Node
	}
	return fmt.Sprintf("%s: %v: claimed %d, the head has %d, of %s: end the workload here and keep its local snapshot aside", e.Name, ErrFenced, e.Mine, e.Head, who)
}

// Is makes it an ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

func corrupt(object, format string, args ...any) error {
	return &snapshot.CorruptError{File: object, Chunk: -1, Reason: fmt.Sprintf(format, args...)}
}

func truncated(object, format string, args ...any) error {
	return &snapshot.CorruptError{File: object, Chunk: -1, Truncated: true, Reason: fmt.Sprintf(format, args...)}
}

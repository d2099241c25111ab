package leftover

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Fate is what became of a leftover's container.
type Fate string

// The fates.
const (
	Exists  Fate = "exists"
	Gone    Fate = "gone"
	Unknown Fate = "unknown"
)

// Leftover is a directory that no shim looks after.
type Leftover struct {
	node.Key // empty when the head can't be read
	snapshot.Stored
}

// Name is how a person names it: by its identity, where it has one, or by its container, or by its directory when neither can be read.
func (l Leftover) Name() string {
	switch {
	case l.Head.Identity != "":
		return l.Namespace + "/identity=" + l.Head.Identity
	case l.Key == (node.Key{}):
		return l.Dir
	}
	return l.Key.String()
}

// Find lists the leftovers below dataDir. Those of which a record in runDir says that a shim lives are none.
func Find(dataDir, runDir string) ([]Leftover, error) {
	all, err := snapshot.Survey(dataDir)
	if err != nil {
		return nil, err
	}
	// After the survey: what was there before its shim's record is seen to have one. A record that can't be read may be of
	// any shim.
	records, err := handover.ListRecords(runDir)
	if err != nil {
		return nil, fmt.Errorf("which shims live: %w", err)
	}
	owned := make(map[string]bool)
	for _, r := range records {
		if r.Alive() {
			owned[snapshot.DirFor(dataDir, r.Namespace, r.ID, r.Identity)] = true
		}
	}
	var left []Leftover
	for _, s := range all {
		if !owned[s.Dir] {
			left = append(left, Leftover{Key: node.Key{Namespace: s.Head.Namespace, ID: s.Head.ID}, Stored: s})
		}
	}
	return left, nil
}

// Errors of Ask and Remove.
var (
	// ErrNotAsked: the head doesn't tell of what container it is, or which containerd ran that.
	ErrNotAsked = errors.New("it is not told which containerd ran it")
	// ErrIdentity: whichever container has its identity goes on from it, so no container's end says that nobody wants it.
	ErrIdentity = errors.New("it has an identity, and any container that is given this goes on from it")
	// ErrExists: the container still exists.
	ErrExists = errors.New("its container still exists: started again, it goes on from this snapshot")
	// ErrBusy: a shim uses it.
	ErrBusy = snapshot.ErrBusy
	// ErrUnknown: nobody can say whether it does.
	ErrUnknown = errors.New("it is not known whether its container still exists")
)

// Ask asks containerd for a leftover's fate. With an error that is Unknown.
func Ask(ctx context.Context, l Leftover) (Fate, error) {
	if l.Err != nil {
		return Unknown, l.Err
	}
	if l.Head.Identity != "" && l.Head.State != snapshot.Ended {
		return Unknown, ErrIdentity
	}
	if l.Head.Containerd == "" || l.ID == "" {
		return Unknown, ErrNotAsked
	}
	exists, err := containerExists(ctx, l.Head.Containerd, l.Key)
	switch {
	case err != nil:
		return Unknown, err
	case exists:
		return Exists, nil
	}
	return Gone, nil
}

// Remove removes a leftover, unless its container exists or may exist; with force, whatever containerd says. One that a shim
// has taken up meanwhile is left alone: ErrBusy.
func Remove(ctx context.Context, l Leftover, force bool) error {
	local, err := snapshot.OpenLocal(l.Dir)
	if err != nil {
		return err
	}
	if !force { // asked again while no shim can take it up
		if err = mayGo(ctx, l); err == nil {
			err = unchanged(l, local)
		}
	}
	if err == nil {
		err = local.Remove()
	} else { // it may have gone meanwhile, and opening has made it again
		err = errors.Join(err, local.RemoveUnused())
	}
	return errors.Join(err, local.Close())
}

func mayGo(ctx context.Context, l Leftover) error {
	fate, err := Ask(ctx, l)
	switch fate {
	case Gone:
		return nil
	case Exists:
		return ErrExists
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// unchanged is an error when another shim has used the directory since it was found.
func unchanged(l Leftover, local *snapshot.Local) error {
	head, err := local.Head()
	if err != nil {
		return err
	}
	if !head.Time.Equal(l.Head.Time) || head.Sequence != l.Head.Sequence {
		return errors.New("it has changed meanwhile")
	}
	return nil
}

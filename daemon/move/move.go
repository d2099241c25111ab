// Package move moves a workload with an identity to another node because a person asks for it: the target says first whether it takes it, and keeps memory
// for it; then the workload is put to sleep here; then the target has it from here, with its claim, and wakes the container that waits for it there.
//
//   - Mover is the source's part, Host the target's. They speak by package peer.
//
// Until the target has the claim the workload is this node's: whatever fails before, it goes on here, if it was awake. Which of both has it in the end, the store says.
package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Peers are the other nodes. See peer.Client.
type Peers interface {
	Target(ctx context.Context, node string) (durable.Owner, error)
	Reserve(ctx context.Context, a peer.Ask) error
	Pull(ctx context.Context, a peer.Ask) (peer.Pulled, error)
}

// Rights have nothing be granted here meanwhile. See upload.Uploader.Move.
type Rights interface {
	Move(w api.Workload, to string, within time.Duration) (done func(), known bool)
}

// Mover moves workloads away. All fields are required.
type Mover struct {
	Node    string
	DataDir string
	Peers   Peers
	Rights  Rights
	// Ability is this node's: what a workload that has never slept needs.
	Ability func() eligible.Ability
	// Memory is what a workload takes that is awake, in bytes.
	Memory func(w *node.Workload) uint64
	Log    *slog.Logger
}

// Step is one of a move that has ended.
type Step struct {
	Name   string
	Took   time.Duration
	Detail string
}

// RefusedError says that nothing was begun, or that nothing of it is left: the workload is where it was.
type RefusedError struct{ Why error }

func (e *RefusedError) Error() string { return e.Why.Error() + ": it goes on here" }

// Unwrap gives the reason.
func (e *RefusedError) Unwrap() error { return e.Why }

// wakeLimit bounds a wake here after a move that failed.
const wakeLimit = time.Minute

// Move moves w to a node, within a time. tell is told of each step when it has ended. Errors: *RefusedError; any other one says where the workload may be.
func (m *Mover) Move(ctx context.Context, w *node.Workload, to string, within time.Duration, tell func(Step)) (p peer.Pulled, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	identity, state := w.Status().GetIdentity(), w.State()
	switch {
	case identity == "":
		return p, &RefusedError{errors.New("it has no identity (the annotation io.containerd.hibernate/identity), so nobody elsewhere can go on with it")}
	case to == m.Node:
		return p, &RefusedError{errors.New("it is on that node already")}
	case state != "awake" && state != "asleep":
		return p, &RefusedError{fmt.Errorf("it is %s", state)}
	}
	step := func(name string, do func() (string, error)) error {
		begun := time.Now()
		detail, err := do()
		if err == nil {
			tell(Step{name, time.Since(begun), detail})
		}
		return err
	}
	ask := peer.Ask{Namespace: w.Namespace, Identity: identity, Wait: within}
	err = step("check", func() (string, error) {
		if ask.Owner, err = m.Peers.Target(ctx, to); err != nil {
			return "", err
		}
		ask.Needs, ask.Bytes = m.needs(w, identity)
		return fmt.Sprintf("%s takes it, and keeps %d MiB for it", to, ask.Bytes>>20), m.Peers.Reserve(ctx, ask)
	})
	if err != nil {
		return p, &RefusedError{err}
	}
	done, _ := m.Rights.Move(api.Workload{Namespace: w.Namespace, ID: w.ID, Identity: identity}, to, within)
	defer done()
	if state == "awake" {
		err = step("sleep", func() (string, error) {
			_, err := w.Shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "move", Manual: true, Urgent: true})
			return "", err
		})
		if err != nil {
			return p, &RefusedError{fmt.Errorf("it could not be put to sleep: %w", err)}
		}
	}
	err = step("hand-over", func() (string, error) {
		deadline, _ := ctx.Deadline()
		ask.Wait = time.Until(deadline)
		p, err = m.Peers.Pull(ctx, ask)
		return came(p, m.Node), err
	})
	if err == nil {
		if p.Woken != "" {
			tell(Step{"wake", time.Duration(p.WakeMs) * time.Millisecond, "container " + p.Woken})
		}
		return p, nil
	}
	done()
	if state == "awake" {
		return p, m.goOn(w, to, err)
	}
	return p, fmt.Errorf("%w; it sleeps: where, hibernatectl snapshots ls tells", err)
}

func came(p peer.Pulled, from string) string {
	if p.Sequence == 0 {
		return "by the store"
	}
	return fmt.Sprintf("snapshot %d, from %s", p.Sequence, from)
}

// goOn wakes what was put to sleep for a move that failed. If the other node has it all the same, the store says so, and the wake is refused.
func (m *Mover) goOn(w *node.Workload, to string, why error) error {
	ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
	defer cancel()
	if _, err := w.Shim.Wake(ctx, &shimv1.WakeRequest{Reason: "request"}); err != nil {
		return fmt.Errorf("%w; and it could not be woken here again: %w; it sleeps, here or on %s: hibernatectl snapshots ls tells", why, err, to)
	}
	m.Log.Warn("a move came to nothing: the workload was woken again", "workload", w.Key.String(), "to", to, "error", why)
	return &RefusedError{why}
}

// needs are what the workload's last snapshot needs, or else what this node has.
func (m *Mover) needs(w *node.Workload, identity string) (eligible.Ability, uint64) {
	s := w.Status()
	bytes := max(m.Memory(w), s.GetImageBytes())
	found, err := snapshot.Inspect(snapshot.DirFor(m.DataDir, w.Namespace, w.ID, identity))
	for _, last := range []*snapshot.Snapshot{found.Snapshot, found.Kept} {
		if err == nil && last != nil {
			return eligible.NeedsOf(last.Manifest()), max(bytes, last.Size())
		}
	}
	here := m.Ability()
	here.Runscs = here.Runscs[:min(1, len(here.Runscs))]
	here.Features = nil // what the sandbox has of them nobody has written down yet
	return here, bytes
}

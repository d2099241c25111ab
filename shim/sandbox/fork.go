package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Forked says what a fork has made.
type Forked struct {
	Namespace, PodNamespace string // the scope of the new workloads' identities: this one's

	Sequence uint64        // of the snapshot that they are copies of; 0: of what ran
	Bytes    uint64        // of the files that they share
	Frozen   time.Duration // that it was, for the checkpoint
}

// mostForks is how many workloads one fork makes.
const mostForks = 1000

// Fork makes workloads of these identities, in this one's scope, of what this one is now. They sleep until a container of theirs is
// started, with this one's specification. Of a sleeper they are copies of its snapshot, and nothing wakes; else its sandbox is frozen for a checkpoint,
// and goes on. All are made, or none. Errors: *RefusedError, ErrPrecondition, snapshot.ErrTaken, ctx's, or what failed.
func (w *Workload) Fork(ctx context.Context, identities []string) (Forked, error) {
	children, err := w.children(identities)
	if err != nil {
		return Forked{}, fmt.Errorf("fork: %w", err)
	}
	if n := len(w.inside()); n > 0 {
		return Forked{}, fmt.Errorf("fork: %w", &RefusedError{Verb: "be forked", Reasons: []*shimv1.Reason{reason("pod", fmt.Sprintf(
			"it is a pod with %d containers, and a fork's pod is made by Kubernetes, with containers of its own", n))}})
	}
	ctx, cancel := context.WithTimeout(ctx, hibernateTimeout)
	defer cancel()
	asleep, release, err := w.claimCheckpoint(ctx)
	if err != nil {
		return Forked{}, fmt.Errorf("fork: %w", err)
	}
	type result struct {
		Forked
		error
	}
	done := make(chan result, 1)
	w.background.Go(func() { // Delete waits for it
		defer release()
		f, err := w.fork(ctx, children, asleep)
		done <- result{f, err}
	})
	r := <-done
	if r.error != nil {
		return Forked{}, fmt.Errorf("fork: %w", r.error)
	}
	r.Namespace, r.PodNamespace = w.opts.Namespace, w.spec.Annotations[podNamespaceAnnotation]
	return r.Forked, nil
}

// child is a workload that a fork makes.
type child struct{ identity, dir string }

// children are those of the names, where nothing is yet.
func (w *Workload) children(names []string) (all []child, err error) {
	if n := len(names); n == 0 || n > mostForks {
		return nil, fmt.Errorf("%d workloads: from 1 to %d can be made at once: %w", n, mostForks, ErrPrecondition)
	}
	for i, name := range names {
		if err := config.CheckIdentity(name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPrecondition, err)
		}
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("identity %s is named twice: %w", name, ErrPrecondition)
		}
		identity, err := identityOf(name, w.spec.Annotations)
		if err != nil {
			return nil, err
		}
		c := child{identity, snapshot.DirFor(w.config.DataDir, w.opts.Namespace, "", identity)}
		if _, err := snapshot.ReadHead(c.dir); !errors.Is(err, snapshot.ErrNoHead) {
			return nil, fmt.Errorf("identity %s: %w", name, snapshot.ErrTaken)
		}
		all = append(all, c)
	}
	return all, nil
}

func (w *Workload) fork(ctx context.Context, children []child, asleep bool) (Forked, error) {
	if asleep {
		s, err := w.local.Current()
		if err != nil {
			return Forked{}, fmt.Errorf("its snapshot: %w", err)
		}
		return Forked{Sequence: s.Sequence(), Bytes: s.Size()}, w.mint(ctx, children, s.Image(), s.Manifest(), s.Sequence())
	}
	return w.forkSandbox(ctx, children)
}

// forkSandbox is a checkpoint of what runs, of which only the children have the files in the end.
func (w *Workload) forkSandbox(ctx context.Context, children []child) (f Forked, err error) {
	w.mu.Lock()
	reasons := slices.DeleteFunc(w.blockers(true), func(r *shimv1.Reason) bool { return !slices.Contains(lasting, r.GetCode()) })
	paused := w.root().state == lifecycle.Paused
	w.mu.Unlock()
	if len(reasons) > 0 {
		return f, &RefusedError{Reasons: reasons, Verb: "be forked"}
	}
	if err := w.checkSpace(); err != nil {
		return f, err
	}
	if err := w.sameRunsc(ctx); err != nil {
		return f, err
	}
	if err := w.mayFreeze(); err != nil {
		return f, err
	}
	w.hideFilestore()
	incoming, err := w.local.Begin(ctx)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, incoming.Discard()) }()
	begin := w.opts.Now()
	if err := w.fillCheckpoint(ctx, incoming, paused); err != nil {
		return f, err
	}
	f.Frozen = w.opts.Now().Sub(begin)
	sealed, err := incoming.Seal(ctx)
	if err != nil {
		return f, err
	}
	m, err := w.manifest(ctx, sealed)
	if err != nil {
		return f, err
	}
	// Looked at when it runs again, and not written to the disk: what its children are told is whether there are files, which they go on
	// without only where they are allowed to.
	if m.Containers[0].Volumes, err = lookAtVolumes(ctx, outsideMounts(w.spec)); err != nil {
		return f, err
	}
	image, err := incoming.Image()
	if err != nil {
		return f, err
	}
	f.Bytes = sealed.Size
	return f, w.mint(ctx, children, image, m, 0)
}

// frozenRate is how much memory a checkpoint writes in a second, at the least that was measured.
const frozenRate = 256 << 20

// mayFreeze refuses to freeze what would be frozen for too long: gVisor's checkpoint, once begun, can't be cut short.
func (w *Workload) mayFreeze() error {
	took := time.Duration(float64(w.group.Own()) / frozenRate * float64(time.Second))
	if most := w.config.ForkFreezeMax; took > most {
		return &RefusedError{Verb: "be forked", Reasons: []*shimv1.Reason{reason("fork-freeze-max", fmt.Sprintf(
			"its %d MiB of memory could freeze it for %s, and fork-freeze-max is %s: put it to sleep first (hibernatectl hibernate), since forks of a sleeper freeze nothing, or raise that",
			w.group.Own()>>20, took.Round(10*time.Millisecond), most))}}
	}
	return nil
}

// mint makes all children, or none.
func (w *Workload) mint(ctx context.Context, children []child, from snapshot.Image, m snapshot.Manifest, sequence uint64) (err error) {
	m.Origin = &snapshot.Origin{
		Namespace: w.opts.Namespace, ID: w.opts.ID, Identity: w.identity, Lineage: m.Lineage, Sequence: sequence, Created: w.opts.Now().UTC(),
	}
	m.Epoch, m.Parent, m.Durable, m.Template = 0, 0, nil, false
	for i, c := range children {
		m.Identity = c.identity
		err := snapshot.Mint(ctx, c.dir, from, m, snapshot.WithOwner(w.opts.Namespace, "", c.identity), snapshot.WithContainerd(w.opts.Containerd))
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", c.identity, err), unmint(children[:i]))
		}
	}
	return nil
}

// unmint takes back what the same fork has made. One that a container has begun to use meanwhile is left.
func unmint(made []child) (err error) {
	for _, c := range made {
		l, e := snapshot.OpenLocal(c.dir)
		if e == nil {
			e = errors.Join(l.Remove(), l.Close())
		}
		if e != nil && !errors.Is(e, snapshot.ErrBusy) {
			err = errors.Join(err, fmt.Errorf("%s, which was made, could not be removed: %w", c.identity, e))
		}
	}
	return err
}

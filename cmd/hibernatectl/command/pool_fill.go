package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/daemon/children"
	"github.com/hibernate-runtime/hibernate/daemon/leftover"
	"github.com/hibernate-runtime/hibernate/daemon/pool"
)

func newPoolFill(o *options) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use: "fill [NAMESPACE/]TEMPLATE", Short: "Make children until enough are ready, as hibernated does by itself", Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withTemplate(cmd, args[0], func(ctx context.Context, t template) error {
				want := count
				if want == 0 {
					want, _ = strconv.Atoi(t.setting("pool"))
				}
				made, err := o.fill(ctx, t, want)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d made, %d wanted\n", made, want)
				return err
			})
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 0, "how many are to be ready (default: the template's key pool)")
	return cmd
}

// fill makes members until enough are ready, and removes those of earlier snapshots, and those that nobody knows of.
func (o *options) fill(ctx context.Context, t template, want int) (made int, err error) {
	if t.setting("template") != "true" || t.status.GetSequence() == 0 {
		return 0, fmt.Errorf("it is no template that has slept: %w", errdefs.ErrFailedPrecondition)
	}
	unlock, err := lockPool(t.Pool)
	if err != nil {
		return 0, err
	}
	defer unlock()
	ready, err := o.clear(ctx, t.Pool, t.socket, t.record.Namespace, t.record.Identity, t.status.GetSequence())
	if err != nil {
		return 0, err
	}
	room, err := newRoom(o)
	if err != nil {
		return 0, err
	}
	for ; ready+made < want; made++ {
		if free, err := room.free(); err == nil && free < poolSpare {
			return made, fmt.Errorf("there is too little memory, or room on the disk, for more children: %w", errdefs.ErrFailedPrecondition)
		}
		labels := map[string]string{children.PoolLabel: t.record.Identity}
		if _, err := o.makeOne(ctx, t, labels, func(_ *children.Made, m pool.Member) error { return t.Put(m) }); err != nil {
			return made, err
		}
	}
	return made, nil
}

// poolSpare must be left of the node's memory, and of the disk beyond min-free-disk, for another member to be made.
const poolSpare = 512 << 20

// lockPool keeps others from filling and emptying a pool: Unavailable when one does.
func lockPool(p pool.Pool) (unlock func(), err error) {
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(p.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another fills or empties the pool: %w", errdefs.ErrUnavailable), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// clear removes members of other snapshots than sequence's, and containers that were made for the pool and are not known to it. It returns how
// many are left.
func (o *options) clear(ctx context.Context, p pool.Pool, socket, namespace, identity string, sequence uint64) (left int, err error) {
	node, err := children.Dial(socket, namespace)
	if err != nil {
		return 0, err
	}
	defer node.Close()
	ready, err := p.Ready()
	if err != nil {
		return 0, err
	}
	for _, m := range ready {
		if m.Sequence == sequence {
			left++
			continue
		}
		mine, err := p.TakeOne(m)
		if mine {
			err = errors.Join(o.removeMember(ctx, node, m.Namespace, m.ID), p.Drop(m))
		}
		if err != nil {
			return 0, err
		}
	}
	unknown, err := node.Unstarted(ctx, identity)
	if err != nil {
		return 0, err
	}
	for _, id := range slices.DeleteFunc(unknown, p.Known) {
		if err := o.removeMember(ctx, node, namespace, id); err != nil {
			return 0, err
		}
	}
	return left, nil
}

// removeMember removes a container that was never started, and its copy of the template, which would wait for it to be made again.
func (o *options) removeMember(ctx context.Context, node *children.Node, namespace, id string) error {
	if err := node.Remove(ctx, id); err != nil {
		return err
	}
	dirs, err := o.cordonDirs()
	if err != nil {
		return err
	}
	left, err := leftover.Find(dirs[1], o.runDir)
	for _, l := range left {
		if l.Namespace == namespace && l.ID == id {
			err = errors.Join(err, leftover.Remove(ctx, l, false))
		}
	}
	return err
}

const poolEmptyHelp = `Removes the children of a template that are ready. With --gone those of all templates that are not there any more.`

func newPoolEmpty(o *options) *cobra.Command {
	var gone bool
	cmd := &cobra.Command{
		Use: "empty [NAMESPACE/]TEMPLATE | --gone", Short: "Remove the children that are ready", Long: poolEmptyHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if gone {
				return noArgs(cmd, args)
			}
			return workloadArg(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !gone {
				return o.withTemplate(cmd, args[0], func(ctx context.Context, t template) error { return o.empty(ctx, t.Pool) })
			}
			ctx, cancel := o.deadline(cmd.Context(), drainWithin)
			defer cancel()
			return o.emptyGone(ctx)
		},
	}
	cmd.Flags().BoolVar(&gone, "gone", false, "those of templates that are gone")
	return cmd
}

// emptyGone empties the pools whose template no shim looks after.
func (o *options) emptyGone(ctx context.Context) error {
	f, err := readFleet(o.runDir)
	if err != nil {
		return err
	}
	there := make(map[pool.Pool]bool)
	for _, r := range f.records {
		there[pool.Of(o.runDir, r.Namespace, r.Identity)] = r.Identity != ""
	}
	pools, err := pool.All(o.runDir)
	for _, p := range pools {
		if !there[p] {
			err = errors.Join(err, o.empty(ctx, p))
		}
	}
	return err
}

// empty removes all that are ready, and the pool.
func (o *options) empty(ctx context.Context, p pool.Pool) error {
	unlock, err := lockPool(p)
	if err != nil {
		return err
	}
	defer unlock()
	ready, err := p.Ready()
	if err != nil {
		return err
	}
	for _, m := range ready {
		if _, err := o.clear(ctx, p, m.Containerd, m.Namespace, m.Template, 0); err != nil { // no snapshot has the sequence 0
			return err
		}
	}
	return p.Remove()
}

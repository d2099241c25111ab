package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Store is the durable tier. Copies, Condition and Stats answer at once.
type Store interface {
	Copies(node.Key) (upload.Copies, bool)
	Condition() upload.Condition
	Stats() upload.Stats
	List(ctx context.Context, name string) ([]upload.Listed, error)
	Verify(ctx context.Context, name string, sequence uint64, tell func(durable.Progress)) (string, durable.Generation, error)
	Collect(ctx context.Context, name string, dryRun bool, tell func(upload.Collected) error) error
	Manager
}

// errNoStore is FailedPrecondition at the edge.
var errNoStore = fmt.Errorf("no store is configured: set the key store in hibernated's file: %w", errdefs.ErrFailedPrecondition)

// copies says where a workload's snapshots are.
func (a API) copies(w *node.Workload) *daemonv1.Copies {
	if a.Store == nil {
		return nil
	}
	c, ok := a.Store.Copies(w.Key)
	if !ok {
		return &daemonv1.Copies{LocalSequence: w.Status().GetSequence()}
	}
	return copiesOf(c)
}

func copiesOf(c upload.Copies) *daemonv1.Copies {
	return &daemonv1.Copies{
		Name: c.Name, LocalSequence: c.Local, DurableSequence: c.Durable, DurableUnixMs: unixMs(c.At), LackingUnixMs: unixMs(c.Since),
		Uploading: c.Sending, SentBytes: uint64(c.Sent), Error: text(c.Err), Final: c.Final,
		OverQuota: errors.Is(c.Err, upload.ErrQuota),
	}
}

// unixMs of the zero time is 0.
func unixMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// condition is the store's.
func (a API) condition() *daemonv1.StoreCondition {
	if a.Store == nil {
		return nil
	}
	s := a.Store.Stats()
	return &daemonv1.StoreCondition{
		Url: s.Condition.URL, Fences: string(s.Condition.Fences), Condition: s.Condition.Text(), AheadMs: s.Condition.Skew.Milliseconds(),
		Key: s.Condition.Key, Waiting: uint32(s.Waiting + s.Running), Stuck: uint32(s.Stuck), LagMs: s.Lag.Milliseconds(),
	}
}

// Snapshots implements the service.
func (a API) Snapshots(ctx context.Context, req *daemonv1.SnapshotsRequest, stream daemonv1.TTRPCDaemon_SnapshotsServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	all, err := a.Store.List(ctx, req.GetName())
	if err != nil {
		return storeError(err)
	}
	for _, l := range all {
		if err := stream.Send(lineageOf(l)); err != nil {
			return err
		}
	}
	return stream.Send(&daemonv1.Lineage{End: true})
}

func lineageOf(l upload.Listed) *daemonv1.Lineage {
	out := &daemonv1.Lineage{
		Name: l.Name, Namespace: l.Key.Namespace, Id: l.Key.ID, GoneUnixMs: unixMs(l.Gone), Error: text(l.Err),
		State: string(l.Head.State), Epoch: l.Head.Epoch,
	}
	out.DeleteUnixMs, out.Last, out.Identity = unixMs(l.Delete), l.Head.Last, l.Identity
	if l.Key.ID != "" {
		out.Copies = copiesOf(l.Copies)
	}
	if l.Head.Owner != nil {
		out.Owner = l.Head.Owner.Node
	}
	if l.Head.Key != nil {
		out.Key = l.Head.Key.ID
	}
	for _, g := range l.Head.Generations {
		out.Generations = append(out.Generations, generationOf(g))
	}
	return out
}

func generationOf(g durable.Generation) *daemonv1.Generation {
	return &daemonv1.Generation{
		Sequence: g.Sequence, Epoch: g.Epoch, CreatedUnixMs: unixMs(g.Created), ImageBytes: uint64(g.Image), SentBytes: uint64(g.Sent),
		FetchBytes: uint64(g.Fetch), Pinned: g.Pinned, Chain: uint32(g.Chain),
	}
}

// progressEvery is the time between two messages about what takes long.
const progressEvery = 500 * time.Millisecond

// VerifySnapshot implements the service.
func (a API) VerifySnapshot(ctx context.Context, req *daemonv1.VerifySnapshotRequest, stream daemonv1.TTRPCDaemon_VerifySnapshotServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	var mu sync.Mutex // guards stream and told
	var told time.Time
	name, g, err := a.Store.Verify(ctx, req.GetName(), req.GetSequence(), func(p durable.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(told) >= progressEvery {
			told = time.Now()
			_ = stream.Send(&daemonv1.VerifySnapshotResponse{DoneBytes: uint64(p.Done), AllBytes: uint64(p.Image)}) // the last one's error counts
		}
	})
	if err != nil {
		return storeError(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return stream.Send(&daemonv1.VerifySnapshotResponse{
		Name: name, DoneBytes: uint64(g.Image), AllBytes: uint64(g.Image), Verified: generationOf(g),
	})
}

// garbageTold bounds a message.
const garbageTold = 1000

// CollectSnapshots implements the service.
func (a API) CollectSnapshots(ctx context.Context, req *daemonv1.CollectSnapshotsRequest, stream daemonv1.TTRPCDaemon_CollectSnapshotsServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	err := a.Store.Collect(ctx, req.GetName(), req.GetDryRun(), func(c upload.Collected) error {
		out := &daemonv1.Collection{
			Name: c.Name, Dropped: c.Dropped, DeletedObjects: uint64(len(c.Deleted)), DeletedBytes: uint64(c.Bytes()),
			Unknown: c.Unknown[:min(len(c.Unknown), garbageTold)], Objects: uint64(c.Listed), Error: text(c.Err),
		}
		for _, g := range c.Deleted[:min(len(c.Deleted), garbageTold)] {
			out.Deleted = append(out.Deleted, &daemonv1.Garbage{Name: g.Name, Bytes: uint64(g.Size), ModifiedUnixMs: unixMs(g.Modified)})
		}
		return stream.Send(out)
	})
	if err != nil {
		return storeError(err)
	}
	return stream.Send(&daemonv1.Collection{End: true})
}

// storeError gives an error of the durable tier its class at the edge.
func storeError(err error) error {
	if class := classOf(err); class != nil {
		return errgrpc.ToGRPCf(class, "%s", err)
	}
	for _, k := range []struct{ is, class error }{
		{upload.ErrUnknown, errdefs.ErrNotFound}, {durable.ErrNone, errdefs.ErrNotFound}, {durable.ErrDestroyed, errdefs.ErrNotFound},
		{upload.ErrNotOpen, errdefs.ErrUnavailable}, {store.ErrUnavailable, errdefs.ErrUnavailable}, {store.ErrRefused, errdefs.ErrFailedPrecondition},
		{durable.ErrWrongKey, errdefs.ErrFailedPrecondition}, {context.DeadlineExceeded, errdefs.ErrUnavailable},
	} {
		if errors.Is(err, k.is) {
			return errgrpc.ToGRPCf(k.class, "%s", err)
		}
	}
	return errgrpc.ToGRPCf(errdefs.ErrUnknown, "%s", err)
}

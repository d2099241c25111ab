package server

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Manager is what people do with snapshots in the durable tier. Names are a lineage's, or a workload's of this node.
type Manager interface {
	Show(ctx context.Context, name string, sequence uint64) (upload.Details, error)
	Pin(ctx context.Context, name string, sequence uint64, pinned bool) (string, durable.Generation, error)
	Remove(ctx context.Context, name string, sequence uint64, force bool) (upload.Collected, error)
	Export(ctx context.Context, name string, sequence uint64, to upload.To, tell func(durable.Progress)) (string, durable.Generation, error)
	Import(ctx context.Context, name, dir string, tell func(durable.Progress)) (durable.Generation, error)
	Rewrap(ctx context.Context, name string, dryRun bool, tell func(upload.Rewrapped) error) error
}

// ShowSnapshot implements the service.
func (a API) ShowSnapshot(ctx context.Context, req *daemonv1.ShowSnapshotRequest) (*daemonv1.ShowSnapshotResponse, error) {
	if a.Store == nil {
		return nil, errgrpc.ToGRPC(errNoStore)
	}
	d, err := a.Store.Show(ctx, req.GetName(), req.GetSequence())
	if err != nil {
		return nil, storeError(err)
	}
	m := d.Manifest
	out := &daemonv1.ShowSnapshotResponse{
		Lineage: lineageOf(d.Listed), Generation: generationOf(d.Generation), Parent: m.Parent, Node: m.Host.Node,
		Runtime: m.Runtime.Version, Platform: m.Runtime.Platform,
	}
	for _, c := range m.Containers {
		out.Containers = append(out.Containers, &daemonv1.SnapshotContainer{Id: c.ID, Name: c.Name, Image: c.Image})
	}
	for _, f := range m.Files {
		out.Files = append(out.Files, &daemonv1.SnapshotFile{Name: f.Name, Bytes: uint64(f.Size)})
	}
	return out, nil
}

// PinSnapshot implements the service.
func (a API) PinSnapshot(ctx context.Context, req *daemonv1.PinSnapshotRequest) (*daemonv1.PinSnapshotResponse, error) {
	if a.Store == nil {
		return nil, errgrpc.ToGRPC(errNoStore)
	}
	name, g, err := a.Store.Pin(ctx, req.GetName(), req.GetSequence(), !req.GetUnpin())
	if err != nil {
		return nil, storeError(err)
	}
	return &daemonv1.PinSnapshotResponse{Name: name, Generation: generationOf(g)}, nil
}

// RemoveSnapshot implements the service.
func (a API) RemoveSnapshot(ctx context.Context, req *daemonv1.RemoveSnapshotRequest) (*daemonv1.RemoveSnapshotResponse, error) {
	if a.Store == nil {
		return nil, errgrpc.ToGRPC(errNoStore)
	}
	if req.GetName() == "" {
		return nil, errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "which snapshots are to be removed is not said")
	}
	c, err := a.Store.Remove(ctx, req.GetName(), req.GetSequence(), req.GetForce())
	if err != nil {
		return nil, storeError(err)
	}
	return &daemonv1.RemoveSnapshotResponse{Name: c.Name, DeletedObjects: uint64(len(c.Deleted)), DeletedBytes: uint64(c.Bytes())}, nil
}

// progress tells of what takes long, not too often. end comes last.
type progress struct {
	send func(*daemonv1.SnapshotProgress) error

	mu   sync.Mutex // guards what follows, and send
	told time.Time
}

func (p *progress) tell(d durable.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.told) < progressEvery {
		return
	}
	p.told = time.Now()
	_ = p.send(&daemonv1.SnapshotProgress{DoneBytes: uint64(d.Done), AllBytes: uint64(d.Image), MovedBytes: uint64(d.Moved)}) // the last one's error counts
}

func (p *progress) end(name string, g durable.Generation) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(&daemonv1.SnapshotProgress{Name: name, DoneBytes: uint64(g.Image), AllBytes: uint64(g.Image), Generation: generationOf(g)})
}

// ExportSnapshot implements the service.
func (a API) ExportSnapshot(ctx context.Context, req *daemonv1.ExportSnapshotRequest, stream daemonv1.TTRPCDaemon_ExportSnapshotServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	to := upload.To{Directory: req.GetDirectory(), Archive: req.GetArchive()}
	if (to.Directory == "") == (to.Archive == "") || !filepath.IsAbs(to.Directory+to.Archive) {
		return errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "one absolute path is wanted, of a directory or of an archive")
	}
	p := &progress{send: stream.Send}
	name, g, err := a.Store.Export(ctx, req.GetName(), req.GetSequence(), to, p.tell)
	if err != nil {
		return storeError(err)
	}
	return p.end(name, g)
}

// ImportSnapshot implements the service.
func (a API) ImportSnapshot(ctx context.Context, req *daemonv1.ImportSnapshotRequest, stream daemonv1.TTRPCDaemon_ImportSnapshotServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	if !filepath.IsAbs(req.GetDirectory()) {
		return errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "an absolute path of a directory is wanted")
	}
	p := &progress{send: stream.Send}
	g, err := a.Store.Import(ctx, req.GetName(), req.GetDirectory(), p.tell)
	if err != nil {
		return storeError(err)
	}
	return p.end(req.GetName(), g)
}

// RewrapSnapshots implements the service.
func (a API) RewrapSnapshots(ctx context.Context, req *daemonv1.RewrapSnapshotsRequest, stream daemonv1.TTRPCDaemon_RewrapSnapshotsServer) error {
	if a.Store == nil {
		return errgrpc.ToGRPC(errNoStore)
	}
	err := a.Store.Rewrap(ctx, req.GetName(), req.GetDryRun(), func(r upload.Rewrapped) error {
		return stream.Send(&daemonv1.Rewrapped{Name: r.Name, From: r.From, To: r.To, Already: r.Already, Left: uint32(r.Left), Error: text(r.Err)})
	})
	if err != nil {
		return storeError(err)
	}
	return stream.Send(&daemonv1.Rewrapped{End: true})
}

// classOf is the class of an error about what people do with snapshots; nil: none of these.
func classOf(err error) error {
	for _, k := range []struct{ is, class error }{
		{upload.ErrKept, errdefs.ErrFailedPrecondition}, {upload.ErrExists, errdefs.ErrFailedPrecondition}, {upload.ErrNoExport, errdefs.ErrFailedPrecondition},
		{durable.ErrOwned, errdefs.ErrFailedPrecondition},
	} {
		if errors.Is(err, k.is) {
			return k.class
		}
	}
	return nil
}

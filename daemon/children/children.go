package children

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
)

// Parent is a container that others are made like. Close it.
type Parent struct {
	client  *containerd.Client
	info    containers.Container
	spec    *specs.Spec
	image   containerd.Image
	network network
}

// Annotation is the parent's for a key of ours, "" without one.
func (p *Parent) Annotation(key string) string {
	return p.spec.Annotations[config.AnnotationPrefix+key]
}

const (
	dialTimeout = 10 * time.Second
	undoTimeout = time.Minute
)

// Open looks at a container, by the socket of its containerd. Errors: ErrNotOurs, ErrNetwork, and containerd's.
func Open(ctx context.Context, socket, namespace, id string) (_ *Parent, err error) {
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace), containerd.WithTimeout(dialTimeout))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	p := &Parent{client: client}
	if err := p.read(ctx, id); err != nil {
		return nil, errors.Join(fmt.Errorf("container %s: %w", id, err), client.Close())
	}
	return p, nil
}

func (p *Parent) read(ctx context.Context, id string) error {
	c, err := p.client.LoadContainer(ctx, id)
	if err != nil {
		return err
	}
	if p.info, err = c.Info(ctx); err != nil {
		return err
	}
	if err := checkEngine(p.info.Labels); err != nil {
		return err
	}
	if p.spec, err = c.Spec(ctx); err != nil {
		return err
	}
	if p.network, err = networkOf(p.spec, slices.Collect(maps.Keys(p.info.Extensions))); err != nil {
		return err
	}
	if p.image, err = c.Image(ctx); err != nil {
		return fmt.Errorf("its image, which its children need: %w", err)
	}
	return nil
}

// Close ends the connection to containerd.
func (p *Parent) Close() error { return p.client.Close() }

// NeedsNamespaces says whether each child must be given a network namespace, as the parent was.
func (p *Parent) NeedsNamespaces() bool { return p.network.given && !p.network.cni }

// Free says whether there is no container of that id yet: errdefs.ErrAlreadyExists.
func (p *Parent) Free(ctx context.Context, id string) error {
	switch _, err := p.client.LoadContainer(ctx, id); {
	case err == nil:
		return fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	case errdefs.IsNotFound(err):
		return nil
	default:
		return err
	}
}

// Child names one. NetNS is the path of its network namespace; "" for one of its own. Annotations are those that it has instead of the parent's
// own (ownKeys), without the prefix; Labels come to the parent's.
type Child struct {
	ID, NetNS           string
	Annotations, Labels map[string]string
}

// Made is a child whose sandbox is booted, with its network, and whose task has not been started.
type Made struct {
	task containerd.Task
	undo undo.Stack
}

// Make makes a child, or leaves nothing.
func (p *Parent) Make(ctx context.Context, c Child) (_ *Made, err error) {
	m := &Made{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("container %s: %w", c.ID, err), m.Remove(ctx))
		}
	}()
	container, err := p.client.NewContainer(ctx, c.ID, p.options(c)...)
	if err != nil {
		return nil, err
	}
	m.undo.Push("container", func(ctx context.Context) error { return container.Delete(ctx, containerd.WithSnapshotCleanup) })
	if m.task, err = container.NewTask(ctx, cio.NullIO); err != nil {
		return nil, err
	}
	m.undo.Push("task", func(ctx context.Context) error { return deleteTask(ctx, m.task) })
	if p.network.cni {
		detach, err := attach(ctx, p.client.DefaultNamespace()+"-"+c.ID, m.task.Pid())
		if err != nil {
			return nil, err
		}
		m.undo.Push("network", detach)
	}
	return m, nil
}

// Start has the child go on.
func (m *Made) Start(ctx context.Context) error { return m.task.Start(ctx) }

// Remove ends the child, and removes all of it, whatever becomes of ctx.
func (m *Made) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return m.undo.Run(ctx)
}

// Start makes and starts a child, and returns when it has gone on, or has nothing left when it hasn't.
func (p *Parent) Start(ctx context.Context, c Child) (*Made, error) {
	m, err := p.Make(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := m.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("container %s: %w", c.ID, err), m.Remove(ctx))
	}
	return m, nil
}

func deleteTask(ctx context.Context, t containerd.Task) error {
	_, err := t.Delete(ctx, containerd.WithProcessKill)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// options are those of the container.
func (p *Parent) options(c Child) []containerd.NewContainerOpts {
	return []containerd.NewContainerOpts{
		containerd.WithImage(p.image), containerd.WithSnapshotter(p.info.Snapshotter), containerd.WithNewSnapshot(c.ID, p.image),
		func(_ context.Context, _ *containerd.Client, made *containers.Container) (err error) {
			made.Labels, made.Runtime, made.Extensions = maps.Clone(p.info.Labels), p.info.Runtime, maps.Clone(p.info.Extensions)
			if made.Labels == nil {
				made.Labels = make(map[string]string)
			}
			maps.Copy(made.Labels, c.Labels)
			made.Spec, err = typeurl.MarshalAny(childSpec(p.spec, p.info.ID, c))
			return err
		},
	}
}

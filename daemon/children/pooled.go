package children

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

// PoolLabel is on the containers of a pool, with the template's identity.
const PoolLabel = config.AnnotationPrefix + "pool"

// Node is a containerd, for containers that were made earlier. Close it.
type Node struct{ client *containerd.Client }

// Dial connects to a containerd.
func Dial(socket, namespace string) (*Node, error) {
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace), containerd.WithTimeout(dialTimeout))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return &Node{client}, nil
}

// Close ends the connection.
func (n *Node) Close() error { return n.client.Close() }

// Claim takes a container out of its pool, for good, and starts its task.
func (n *Node) Claim(ctx context.Context, id string) error {
	if err := n.claim(ctx, id); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}

func (n *Node) claim(ctx context.Context, id string) error {
	c, err := n.client.LoadContainer(ctx, id)
	if err != nil {
		return err
	}
	task, err := c.Task(ctx, nil)
	if err != nil {
		return err
	}
	err = c.Update(ctx, func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
		delete(c.Labels, PoolLabel) // before it runs: who empties the pool must never meet it
		return nil
	})
	if err != nil {
		return err
	}
	return task.Start(ctx)
}

// Remove ends a container and removes all of it, its network included. One that isn't there is no error.
func (n *Node) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	c, err := n.client.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	extensions, err := c.Extensions(ctx)
	if _, cni := extensions[ctrNetwork]; cni {
		err = errors.Join(err, detach(ctx, n.client.DefaultNamespace()+"-"+id))
	}
	task, e := c.Task(ctx, nil)
	if e == nil {
		e = deleteTask(ctx, task)
	}
	if e != nil && !errdefs.IsNotFound(e) {
		return fmt.Errorf("container %s: %w", id, errors.Join(err, e))
	}
	if err = errors.Join(err, c.Delete(ctx, containerd.WithSnapshotCleanup)); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}

// Unstarted are the containers of a template's pool whose task was never started, or is lost.
func (n *Node) Unstarted(ctx context.Context, template string) (ids []string, err error) {
	all, err := n.client.Containers(ctx, fmt.Sprintf("labels.%q==%q", PoolLabel, template))
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		task, err := c.Task(ctx, nil)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			status, err := task.Status(ctx)
			if err != nil {
				return nil, err
			}
			if status.Status != containerd.Created {
				continue
			}
		}
		ids = append(ids, c.ID())
	}
	return ids, nil
}

package leftover

import (
	"context"
	"errors"

	api "github.com/hibernate-runtime/hibernate/daemon/containerd"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// containerExists asks containerd at a socket whether it knows a container.
func containerExists(ctx context.Context, socket string, key node.Key) (bool, error) {
	_, err := api.Get(ctx, socket, key.Namespace, key.ID)
	if errors.Is(err, api.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

package peer

import (
	"context"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Directory knows the other nodes.
type Directory interface {
	// Contact reads what a node tells of itself, and which incarnation of it does. Errors as of durable.Tier.Contact.
	Contact(ctx context.Context, node string) (c durable.Contact, incarnation string, err error)
}

// StoreDirectory reads the nodes' objects.
type StoreDirectory struct {
	Tier func() (*durable.Tier, error)
}

// Contact implements Directory.
func (d StoreDirectory) Contact(ctx context.Context, node string) (durable.Contact, string, error) {
	tier, err := d.Tier()
	if err != nil {
		return durable.Contact{}, "", err
	}
	s, err := tier.Node(ctx, node)
	switch {
	case err != nil:
		return durable.Contact{}, "", err
	case s.Err != nil:
		return durable.Contact{}, "", s.Err
	case s.Version == "":
		return durable.Contact{}, "", fmt.Errorf("%w: it has told nothing yet", durable.ErrNoContact)
	}
	c, err := tier.Contact(ctx, s.Node)
	return c, s.Incarnation, err
}

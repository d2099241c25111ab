package durable

import (
	"context"
	"fmt"
)

// Usage is what a lineage's generations take in the store, in bytes: each object once, however many need it. What nothing needs any
// more, and goes by itself, isn't counted; of a generation whose manifest can't be read, only that is.
func (l *Lineage) Usage(ctx context.Context) (int64, error) {
	h, err := l.Head(ctx)
	if err != nil {
		return 0, fmt.Errorf("usage: %w", err)
	}
	var sum int64
	counted := make(map[string]bool)
	for _, g := range h.Generations {
		k, err := l.unwrap(ctx, *h.Key)
		if err != nil {
			return 0, fmt.Errorf("usage: %w", err)
		}
		sum += g.Size
		m, err := l.manifest(ctx, k, g)
		if damaged(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("usage: %w", err)
		}
		for _, p := range m.Packs {
			if !counted[p.Name] {
				counted[p.Name] = true
				sum += p.Size
			}
		}
	}
	return sum, nil
}

package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

const (
	listFormat = "hibernate.condemned"
	maxList    = maxObject
)

// listBody is what a list of condemned objects says.
type listBody struct {
	Number uint64   `json:"number"`
	Names  []string `json:"names"`
}

// readList gives the names of a list; gone when the list is no longer there.
func (l *Lineage) readList(ctx context.Context, c Condemned) (names []string, gone bool, err error) {
	data, _, err := l.t.cfg.Store.Get(ctx, l.data(c.Name), maxList)
	if errors.Is(err, store.ErrNotFound) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read a list of condemned objects: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != c.SHA256 {
		return nil, false, corrupt(c.Name, "its SHA-256 is not the one of the head")
	}
	var b listBody
	if err := decodeDocument(c.Name, listFormat, data, &b); err != nil {
		return nil, false, err
	}
	return b.Names, false, nil
}

// condemnedSince tells what the lists say that have come to the head since it had that many. all: one is missing, so that
// anything may stand in it.
func (l *Lineage) condemnedSince(ctx context.Context, since uint64, h Head) (names map[string]bool, all bool, err error) {
	names = make(map[string]bool)
	for n := since + 1; n <= h.Collections; n++ {
		i := -1
		for j, c := range h.Condemned {
			if c.Number == n {
				i = j
			}
		}
		if i < 0 {
			return nil, true, nil
		}
		list, gone, err := l.readList(ctx, h.Condemned[i])
		if gone || damaged(err) {
			return nil, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		for _, name := range list {
			names[name] = true
		}
	}
	return names, false, nil
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A workload that slept on another node may come from there by way of the daemons, with the right to run it: it is on this node then, and in no
// workload's directory yet. docs/decisions/0009.

// hasReceived says whether the right came with a snapshot that is still to be taken in.
func (w *Workload) hasReceived() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.right != nil && w.right.received != ""
}

// takeIn has the workload's directory have what came with the right. Nobody reads there what was before. taken: there was something.
func (w *Workload) takeIn(ctx context.Context) (taken bool, err error) {
	w.mu.Lock()
	r := w.right
	w.mu.Unlock()
	if r == nil || r.received == "" {
		return false, nil
	}
	s, err := snapshot.OpenReceived(r.received)
	if err == nil {
		s, err = w.local.Receive(ctx, s)
	} else if errors.Is(err, fs.ErrNotExist) { // the daemon has seen that it is taken in
		s, err = w.local.Current()
	}
	if err != nil {
		return false, fmt.Errorf("what node %s has sent: %w", r.from, err)
	}
	m := s.Manifest()
	if w.origin == nil && w.link != nil {
		if w.origin, err = originOf(m); err != nil {
			return false, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.received, w.cameFrom = "", r.from
	w.saved = saved{sequence: m.Sequence, bytes: s.Size(), lineage: m.Lineage}
	w.ports, w.only4 = slices.Clone(m.Ports), slices.Clone(m.Only4)
	return true, nil
}

// tellOrigin adds to a wake's record from which node its snapshot came, once.
func (w *Workload) tellOrigin(t *transition, sequence uint64) {
	w.mu.Lock()
	from := w.cameFrom
	w.cameFrom = ""
	w.mu.Unlock()
	if from != "" {
		t.remark(fmt.Sprintf("snapshot %d came from %s", sequence, from))
	}
}

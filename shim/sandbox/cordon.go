package sandbox

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hibernate-runtime/hibernate/internal/cordon"
)

// ErrCordoned: the node is cordoned, and nothing from outside wakes what sleeps on it. Whoever waits may try again.
var ErrCordoned = errors.New("it sleeps on")

// fromOutside are the reasons of wakes that nobody has asked for by name.
var fromOutside = append(slices.Clone(held), byPacket, byLease)

// cordoned says why a sleeper may not be woken for a reason; nil: it may.
func (w *Workload) cordoned(why string) error {
	if !slices.Contains(fromOutside, why) {
		return nil
	}
	note, err := cordon.Read(w.config.RunDir, w.config.DataDir)
	if err != nil { // as if there were none: sleepers are there to be woken
		w.opts.Log.Warn("whether the node is cordoned is not known", "error", err)
	}
	if note == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrCordoned, note)
}

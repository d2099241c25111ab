package sandbox

import (
	"context"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// What a sandbox asks for while its memory is loaded, the next one from the same memory will probably ask for, too. It is kept as
// places in the memory, goes with it into the next snapshot's manifest, and is read ahead when that is woken from. It is a hint:
// without it, or with a wrong one, a wake is as right, and takes longer at most.

// touched is what was asked for first of a sandbox's memory, when it was restored.
type touched struct {
	generation int // of the sandbox
	memory     snapshot.MemoryTouched
}

// readAhead begins to read what the workload will probably need first, beside the boot of its sandbox.
func (w *Workload) readAhead(ctx context.Context, s *snapshot.Snapshot) {
	if w.config.Load != config.LoadFlat {
		return
	}
	w.background.Go(func() {
		if err := s.ReadAhead(ctx); err != nil && ctx.Err() == nil {
			w.opts.Log.Debug("read ahead", "error", err)
		}
	})
}

// keepTouched keeps what a sandbox that was restored from s has asked for out of turn, and after it what was known before.
func (w *Workload) keepTouched(generation int, s *snapshot.Snapshot, reads []runsc.Read) {
	memory, err := s.InMemory(asTouched(reads))
	if err != nil {
		w.opts.Log.Debug("what was asked for first is not kept", "error", err)
	}
	w.opts.Log.Debug("asked for out of turn", "reads", len(reads), "kept", len(memory))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touched = touched{generation, memory}
}

const pageSize = 4096 // of memory files

// asTouched is reads in pages. Reads that can't be are made ones that are refused later.
func asTouched(reads []runsc.Read) snapshot.Touched {
	t := make(snapshot.Touched, len(reads))
	for i, r := range reads {
		if first := r.Off / pageSize; r.Off >= 0 && r.N > 0 && r.Off+r.N > 0 {
			t[i] = snapshot.PageRun{Page: uint64(first), Count: uint64((r.Off+r.N+pageSize-1)/pageSize - first)}
		}
	}
	return t
}

// firstTouched is what is known of the sandbox that runs.
func (w *Workload) firstTouched() snapshot.MemoryTouched {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.touched.generation != w.generation {
		return nil
	}
	return w.touched.memory
}

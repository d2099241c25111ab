// Package leftover finds snapshots that no shim looks after, and removes those whose container is gone.
//
// Vocabulary:
//
//   - leftover: a workload's directory in the local tier without a shim that lives.
//   - fate: what containerd says of its container. It *exists*: started again, it goes on from there. It is *gone*: somebody
//     has deleted it, and nothing can be restored from the directory any more but by a person who makes the same container
//     again. It is *unknown* where containerd can't be asked; that is never taken for gone.
//
// Asked is the containerd that ran the container, whose socket the head of the directory names: a node may have several.
//
//	left, err := leftover.Find(dataDir, runDir)
//	fate, err := leftover.Ask(ctx, left[0])
//	err = leftover.Remove(ctx, left[0], false)
//
// A Collector does that again and again for the daemon. It removes only what has been gone, as far as it could see, for a
// while, and what nobody has set aside in quarantine; it tells of each.
package leftover

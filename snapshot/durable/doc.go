// Package durable keeps snapshots where more than one node reaches them, encrypted, with little to send and no way to
// lose what was committed.
//
// A *lineage* is one workload's chain of snapshots, with a key of its own. Its pages of 4 KiB are told apart by a keyed
// hash; new ones are put together in *frames* (64 pages, compressed, encrypted) and frames in *packs*, objects of up to
// 32 MiB that never change. A snapshot's *manifest* says which pages are where: its *extents*. The *head* is the one
// object that changes, by compare-and-swap: who may run the workload (*epoch*, *owner*), and which snapshots count (the
// *generations*). docs/FORMAT.md has the bytes and the protocol, docs/decisions/0007 the reasons.
//
//	tier, err := durable.New(durable.Config{Store: s, Keys: durable.Keyring{Current: key}})
//	l, err := tier.Lineage("default/6f1c…")
//	head, err := l.Acquire(ctx, durable.Claim{})          // epoch + 1; ErrOwned
//	image, err := durable.FromSnapshot(snap)              // of the local tier
//	result, err := l.Commit(ctx, image, durable.CommitOptions{}) // ErrFenced when the epoch has moved
//	err = l.Release(ctx)
//
// and elsewhere
//
//	head, err := l.Acquire(ctx, durable.Claim{Restore: sequence})
//	r, err := l.Open(ctx, sequence, durable.OpenOptions{})
//	f, err := r.File("pages.img")                         // an io.ReaderAt; or r.Restore(ctx, dir, nil)
//	err = l.Running(ctx)
//
// Every method ends with its context. What fails may be done again.
package durable

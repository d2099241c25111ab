// Package upload keeps copies of this node's snapshots in the durable tier (package snapshot/durable).
//
// Vocabulary:
//
//   - lineage: one workload's chain of snapshots. Its name in the store is that of its directory in the local tier, and, where no
//     identity says that another container may go on with it, the random id of the chain: a container that is made anew under an
//     old id, or another node's, is another lineage.
//   - record: what this node knows of a lineage in the store, in <data-dir>/.durable: by which claim it writes there, and what was
//     committed last. All else is read from the local tier, so a daemon that is killed forgets nothing that matters.
//   - lag: how long the store has been without the newest snapshot of a workload.
//   - right: a claim on a lineage of a workload with an identity, for as long as the node's lease lasts (package fence). It is asked for before
//     anything runs, and given up once the workload sleeps and the store has it, or has ended. Each is one caller's at a time (turn).
//
// The local tier belongs to the shims; this package only reads it. What it reads it has opened before, so a snapshot that is
// replaced meanwhile is read to its end, or given up for the newer one. Nothing here ever holds up a hibernation or a wake.
//
// A node that has claimed the lineage of a workload without an identity keeps the claim: it may run it at any time without asking. Errors that time
// mends are tried again for ever, at most every five minutes; those that another claim, or another snapshot of the same number, has
// made are told, and not tried again.
package upload

// Package executors moves, forks and overtakes a workload with an identity between two nodes while everything fails that may fail, and has a witness look
// whether two copies of it ever run at once, and whether a snapshot that was committed is ever lost.
//
// The *witness* lies outside of both nodes: each copy of the workload tells it, all the time, that it executes (integration/testserver's *beats*), by
// packets that the kernel stamps with the time when they come in. So it counts what really runs, and asks no part of hibernate.
//
//   - place: a node and an address there, where one container lives. No two containers ever have the same.
//   - two at once: a beat from one place *between* two from another that are less than together apart. Beats come each 40 ms, so two copies that run
//     beside each other for longer than that are seen, while a workload that goes from one place to another and back needs a checkpoint and a restore for each
//     way, several times as long. A packet in flight is no executor, and none is taken for one: on the same machine it takes microseconds.
//   - setback: a beat that doesn't go on where the last one was: the count is not higher, or the memory is another one. A restore of an older snapshot and
//     a cold start make one, and the shim must have told it. It may never go back behind what the store had committed.
//
// A *field* is two nodes with one store. A *run* is some random acts, told by a seed: moves, takeovers, forks, partitions, SIGSTOP and thaw, SIGKILL of any part, outages of
// the store. Then all is mended, one copy must come up, and the witness is asked.
//
// Not done to a node, since nothing is left there that could end a sandbox (docs/OPERATIONS.md, "kill nodes whole"): its daemon and a shim dead, or stopped, at the same time.
// What runs on a machine that was stopped as a whole says a last word when it goes on, before any timer fires (docs/decisions/0008): such words are counted by themselves.
package executors

// Package fence knows whether this node may run what it has claimed, and which other nodes are dead.
//
//   - beat: one write of the node's object in the store. It counts from when it was begun.
//   - lease: what a confirmed beat gives: until it ends, nobody else takes over. Shims read it (package api/rights).
//   - term: a time in which the lease has never ended. What was claimed in the present one is this node's without asking; what was claimed
//     before must be confirmed in the store first, since somebody may have taken it over.
//   - silence: how long another node's object has been seen unchanged. Enough of it, and the node is dead.
//
// With T the time of the key takeover-after: a beat every T/6; the lease puts workloads to sleep T/2 after the last one that was confirmed, and ends
// T/6 before T. Others count a node as dead after T and T/6. So T/3 lie between, for clocks that don't run alike and for what takes its
// time to end.
//
// Clocks: the lease is counted with the one that goes on while the machine is suspended, silence with the one that doesn't. So both err
// on the safe side, and looks at other nodes may be as far apart as they like: each write of a node's object has a nonce, and one that is
// the same at two looks was not written in between.
package fence

// Package chaos kills the daemon, the store's server and the shim of a workload at random moments, while it sleeps, wakes and works and
// while collectors run, and looks afterwards whether anything that was committed is lost, and anything is left over.
//
// A *field* is where that happens: a world whose daemon has a store, and one workload. A *run* is some random actions, told by a seed, and a
// look at the end: what the store had committed is there and whole, the workload goes on from where it was, from its local
// snapshot and from the store's alone, and after a collection without a grace nothing is in the store that no snapshot needs.
//
// What is random is the choice and the pauses; what they meet depends on the machine, so a seed repeats the actions, not the moment.
package chaos

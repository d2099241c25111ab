// Package drainer has the connections that a daemon passes on outlive it: when it ends in order, as for an upgrade, it lets go of
// them, and starts a *drainer*, a process of the same program that carries them on until they end.
//
// A drainer has descriptors, and no more: it accepts nothing, wakes nobody and decides nothing; the next daemon has all of that,
// at once. It ends with its last connection. It resets those of a workload whose shim is gone, as a daemon does, and all when its
// limit is over, or when it is sent SIGTERM.
//
// What it carries on is told to it by its standard input, in JSON; the numbers of the descriptors are those that it was started
// with. Nothing is read by another version: the program that starts it is the one that runs, even when the file has been replaced.
package drainer

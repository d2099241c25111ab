// Package expire ends sleepers that nobody has wanted for as long as their key delete-after says, with their snapshots, and never
// silently: it is told when it comes near, and when it is done, in the log, a metric and a file.
//
// A workload that is woken, by whomever and for however short, begins anew. One that is paused, blocked, or whose shim doesn't answer,
// is left alone.
package expire

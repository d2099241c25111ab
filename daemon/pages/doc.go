// Package pages serves snapshots in the durable tier to this node's shims and their sidecars: package api/pages is the protocol.
//
// A *session* is one open generation, with a lease in the store, whoever reads it; it ends a moment after its last connection, or when
// one says so. Its *ahead* fetches the chunks that are going to be asked for, in that order, and keeps a bounded number of them
// until they are.
//
// Memory is bounded by what may be under way and ahead at once, whatever is asked: Options.Reads + Options.Ahead chunks of 1 MiB, and
// what an open snapshot takes (durable.Lineage.Open) for each of Options.Sessions.
package pages

// Package pages is how a shim and its sidecar read snapshots of the durable tier: through the node's daemon, which alone has the
// store's credentials and keys, over a Unix socket of root's in the run directory.
//
// A *ticket* is the right to read one generation. The daemon gives it to the shim, which names its own workload, and the shim to its
// sidecar; it outlives the daemon, so that a load goes on with the next one. An *open* snapshot is kept in the store for as long as
// somebody has it open.
//
// The protocol is small. A message is four bytes of length, big-endian, and JSON: a Request, or an Answer, which is followed by
// Answer.Bytes bytes. A connection has one request under way at a time:
//
//	look    what the daemon knows of a workload's snapshots in the store, and a ticket for one of them; asks no store
//	open    opens a generation, and answers its manifest.json; the connection may read it then
//	attach  the same by a ticket, without the manifest
//	expect  names chunks that will be asked for first
//	read    a part of a file of at most MaxRead bytes
//	pin     keeps a generation whatever its age
//	close   ends what is open, for all connections
//
// sidecar/pages/remote.go speaks it, too: change both together.
package pages

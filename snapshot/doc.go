// Package snapshot keeps what a sleeping workload wakes from.
//
// A *checkpoint* is the set of files that runsc writes. A *snapshot* is a
// checkpoint together with its *manifest*, which says what made it, what may
// wake it, and the checksum of each chunk of it. A *tier* is a place for
// snapshots; this package holds the local one, a directory per workload:
//
//	<data>/<namespace>/<identity-hash>/
//	  head.json            state of the workload and which snapshot counts
//	  <sequence>/          the one committed snapshot
//	    manifest.json
//	    image/             runsc's files as they are
//	  incoming/            at most one that is being written
//	  quarantine/          what must not be restored, kept for a person
//	  trash/               what is being deleted
//	  lock                 held by the process that owns the workload
//
// docs/FORMAT.md describes the files. *sequence* counts the snapshots of an
// identity, *epoch* counts who may execute it; both only go up.
//
// Putting to sleep:
//
//	l, err := snapshot.OpenLocal(snapshot.DirFor(data, namespace, id, identity))
//	in, err := l.Begin(ctx)
//	… runsc checkpoint --image-path in.ImageDir() …
//	sealed, err := in.Seal(ctx)         // complete, on disk, checksums known
//	snap, err := in.Commit(ctx, manifest) // from here on it counts
//
// Waking up:
//
//	snap, err := l.Current()
//	err = snap.Verify(ctx)              // ErrCorrupt: l.Quarantine(snap, …)
//	… runsc restore --image-path snap.ImageDir() …
//	err = l.SetState(ctx, snapshot.Awake)
//
// Until Commit has returned nil the snapshot before it is the one that counts,
// whatever happens: an error, a kill, or a power failure.
package snapshot

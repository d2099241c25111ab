// Package runsc is a typed client of the runsc command line.
//
// Words: a container is what `runsc create` makes; the sandbox is the process
// tree (sentry and gofer) that it lives in; an image is the directory that
// `runsc checkpoint` writes; an exec is a further process of a container. All
// state lives under Client.Root, in runsc's own files: the client itself keeps
// nothing but the execs it started and a cache of the binary's digest.
//
//	c := &runsc.Client{Path: "runsc", Root: "/run/hibernate/runsc", Flags: runsc.DefaultFlags("systrap")}
//	err := c.Create(ctx, id, runsc.CreateOptions{Bundle: bundle, PidFile: pidFile})
//	err = c.Start(ctx, id)
//	err = c.Pause(ctx, id)
//	err = c.Checkpoint(ctx, id, runsc.CheckpointOptions{ImagePath: dir})
//	err = c.Delete(ctx, id, true)
//	// the sandbox and its memory are gone; later:
//	err = c.Create(ctx, id, runsc.CreateOptions{Bundle: bundle, PidFile: pidFile})
//	err = c.Restore(ctx, id, runsc.RestoreOptions{Bundle: bundle, ImagePath: dir})
//
// Three facts shape it. A sandbox inherits the standard streams of the runsc
// that creates it, so runsc's own messages never go through a pipe of ours but
// to a file (--log). A plain checkpoint ends the sandbox with status 0 even
// when the save failed, so Checkpoint always leaves the sandbox and the caller
// deletes it once the image is known to be good. And the sandbox process, which
// reparents to the nearest subreaper when runsc exits, ends with the status of
// the container's init: whoever reaps the pid of CreateOptions.PidFile needs no
// `runsc wait`.
package runsc

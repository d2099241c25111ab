// Package stdio connects a container's standard streams with the FIFOs and
// files that containerd names, for longer than any sandbox lives.
//
// Words: the client's ends are those of containerd or its client; the sandbox's
// ends are the descriptors given to each runsc. Both may come and go, many
// times, so the relay holds every FIFO open from Open to Finish: a client that
// comes back finds what was written meanwhile, and sees the end of a stream
// only when the container has ended.
//
// A *logger* is a program that containerd names in place of FIFOs. It is started
// once, in Open, by whoever reaps the shim's children, and reads the same two
// pipes through all sandboxes, so that logs go on where they were.
//
// Output has no copy in it. The sandbox's end of stdout is the FIFO itself:
// nothing to lose when the shim dies, no memory for a sleeper, and a slow
// reader slows its container and nobody else. The end is write-only, since
// gVisor takes what it can read from a host pipe into the image. Input is
// copied through a pipe, so that CloseStdin can end it whatever the client
// does. A terminal is copied both ways between its pty and the FIFOs.
package stdio

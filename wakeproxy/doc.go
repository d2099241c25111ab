// Package wakeproxy holds TCP connections to a sleeping workload, has it
// woken, and then passes the connections through to it. It knows nothing of
// containers: it is given listening sockets, a [Waker] and a [Dialer].
//
// The words used here:
//
//   - hold: the time in which connections wait. They wait in the kernel, in
//     the backlog of the listening socket, complete and unread; what their
//     clients send meanwhile waits in the socket's receive buffer. Nothing is
//     accepted before the workload is awake, so a proxy that dies during a
//     hold loses nothing: whoever has the same socket next serves them.
//   - wake: one call of Waker.Wake, shared by all ports of a [Proxy]. A
//     listening socket that becomes readable asks for it.
//   - drain: accepting what waits, dialling the workload for each connection
//     with the client's own address, and splicing both ways until both sides
//     have ended.
//   - refuse: the honest answer to a client whose workload doesn't wake: a
//     reset, or the status 503 for what is an HTTP/1 request.
//   - reset: a connection ended by RST instead of FIN, so that nobody takes
//     a truncated stream for a complete one.
//   - node: what all proxies of one process share: a limit and spare pipes.
//
// One Proxy serves one workload, with one call of Serve for each of its ports:
//
//	p := wakeproxy.New(wakeproxy.Options{Waker: shim, Dialer: pod, Node: node})
//	go p.Serve(ctx, listener, 6379) // until ctx ends
//	...
//	p.Shutdown(ctx)                 // the process ends
//
// Once a connection is established the proxy is invisible: no idle timers, no
// keep-alives towards the workload (they would wake it), half-closed
// connections stay half-closed, a reset on one side is a reset on the other
// after the bytes before it. Two things do not pass: urgent data arrives in
// line, and the acknowledgement a client sees comes from this kernel.
package wakeproxy

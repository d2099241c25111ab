// Package handover is how a shim and the daemon find each other.
//
// A shim leaves a [Record] in the run directory, so that a daemon that starts
// later knows whom to call. And it registers: it dials the daemon's socket and
// hands over descriptors, for which a file can't stand in. The words:
//
//   - hello: what a shim says of its workload, with the descriptors of the
//     pod's network namespace and of one listening socket per port. It may be
//     said again when the ports change; the last one holds.
//   - acknowledgement: the daemon has taken a hello, or says why not. Only
//     then may the shim count on the daemon to hold connections.
//   - kept: listening sockets of a shim that died, which the daemon gives to the
//     workload's next one with the acknowledgement of its first hello.
//   - end: a shim says that its workload has ended. A connection that breaks
//     without it is that of a shim that died.
//   - peer: a shim as the daemon sees it. Its registration lasts as long as
//     the connection; when one side dies the other one learns it at once.
//
// The shim's side:
//
//	c, err := handover.Dial(ctx, "/run/hibernate/hibernated.sock")
//	kept, err := c.Send(ctx, hello, files) // acknowledged when nil
//	err = c.Wait(ctx)          // nil: the daemon is gone
//
// The daemon's:
//
//	s, err := handover.Listen(path)
//	p, err := s.Accept(ctx)
//	for {
//		hello, files, err := p.Receive(ctx)
//		...
//		p.Acknowledge(nil)
//	}
//
// On the wire (SOCK_SEQPACKET) each packet is one JSON object of at most 64 KiB
// with a version and a type; unknown fields and unknown types are ignored, so
// both sides may be upgraded on their own. Descriptors travel as SCM_RIGHTS, up
// to 200 with one packet; further ones follow in packets of type "files".
package handover

// Package network puts a sandbox behind a link of its own, so that the pod's
// network stands still while the sandbox comes and goes.
//
// # Vocabulary
//
// P is the pod's network namespace, made by CNI. It keeps its interface,
// address and routes, and becomes the sandbox's router. I is the inner
// namespace, ours, where runsc finds the pod's address. The link is the veth
// pair between them: hib0 in P, eth0 in I. The gate is an nft table in P which
// decides for each packet that is addressed to the pod whether the sandbox or
// P itself gets it. It has three positions:
//
//	open    everything goes to the sandbox; no process of ours is in the path
//	held    SYNs go to P, where transparent listeners complete the handshake; all
//	        else goes to hib0
//	parked  SYNs too go to hib0
//
// In both, P's kernel answers ICMP echo, and refuses closed ports, TCP's with a
// reset and UDP's with port unreachable, as the sandbox would; ports that are not
// known are not refused, and of gVisor's sandboxes UDP's never are. And both include the cut: nothing that comes from hib0
// passes, and P keeps its other ICMP unreachables to itself.
//
// A packet that goes to hib0 needs a neighbour there. [Link.Connect] sets it,
// permanently; [Link.Disconnect] takes it away, and from then on the kernel
// keeps the packets (1 MiB, the oldest go first) and reports a [Miss]; the next
// Connect delivers them. P never asks for the neighbour on the wire and ignores
// what the sandbox says about itself: a paused sandbox's netstack is still
// alive and would take packets, acknowledge them and lose them.
//
// P's kernel makes its ICMP errors about the sandbox's packets out to the pod's
// address, and so to itself; while the gate is open, they go to hib0.
//
// # The order that loses nothing
//
// No byte may be acknowledged by a sandbox that is then not saved with it. To
// sleep:
//
//	before, _ := l.Counters(ctx)
//	l.HoldKeepAlives(ctx)                   // they are no use, and no miss
//	l.Disconnect(ctx)                       // nothing new reaches I
//	l.Quiet(ctx, 20*time.Millisecond)       // what I had taken is dealt with, answers get out
//	l.SetGate(ctx, Gate{Position: GateHeld, …}) // nothing leaves I: no ACK gets out
//	l.LearnConnections(ctx, flows)          // keep-alives are answered from here on
//	pause, checkpoint
//	after, _ := l.Counters(ctx)             // other than before: stay awake
//
// What was in the veth's or the packet socket's queue is handled by the sandbox
// within the quiet window, and so is part of what is saved. Who was heard in
// that time would wait for an answer that sleeps, and so would the peer of a
// sandbox whose own data was cut off: its retransmission sleeps, too
// ([Link.Unsaid]). To stay awake after all: SetGate(GateOpen), then Connect
// and ReleaseKeepAlives, and a moment later Quicken.
//
// To wake:
//
//	l.PrepareInner(ctx)                     // runsc strips I at each start
//	create and restore
//	l.SetGate(ctx, Gate{Position: GateOpen})    // first: answers must get out
//	l.Connect(ctx)                          // the kernel delivers what it kept
//	l.ReleaseKeepAlives(ctx)                // the sandbox answers for itself
//	l.Check(ctx, ports)                     // the ladder, and the fast path, beside the traffic
//
// [Dial] reaches the sandbox while the gate is open only, since its answers come
// from hib0.
//
// # The fast path
//
// While the gate is open and the sandbox connected, eBPF programs move the
// packets that are plainly the sandbox's between the pod's interface and the
// link, past P's stack. All that is said here of the gate holds for them, too:
// they count use by its rules, and stand still before it closes. They are held
// by the Link's descriptors; without them, and where others' rules in P forbid
// it ([Link.FastPath] tells why), everything goes P's way.
//
// # State
//
// Everything lives in the kernel and is found again by [Open] from the two
// paths; nothing is written to disk. The few sysctls of P that are not the
// link's own are noted in hib0's alias as they were found, and [Link.Remove]
// puts them back. Marks use the bits 0x30000000 and are OR-ed in, routing
// tables are 4242001 (to the sandbox) and 4242002 (to P's own sockets), the nft
// tables are called "hibernate". No verdict depends on conntrack.
//
// # Families
//
// The link carries IPv4 and IPv6, each where the pod has an address of it. Linux
// forwards IPv6 by all interfaces or none: while the link lives, P's sysctl
// all/forwarding is on, no interface of P becomes a router for it (it goes on to
// hear router advertisements, and keeps their routes), and the gate forwards for
// the sandbox only. P's neighbour discovery, of addresses that it shares with the
// sandbox, stays P's. A client with an address of its link alone (fe80::) can't
// reach the sandbox: no router passes that on.
package network

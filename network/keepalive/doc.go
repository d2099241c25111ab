// Package keepalive answers TCP keep-alive probes for an end of connections that isn't there to do so, and nothing else.
//
// A probe asks whether the other end still has the connection. It is a segment which that end has had already: its
// sequence number is one less than the next that is expected, it says nothing (only ACK) and carries nothing, or the one
// byte that some stacks repeat. The answer is the acknowledgement that any segment out of the window gets (RFC 9293,
// 3.10.7.4), and it changes nothing at either end. So who knows what the absent end would say can say it.
//
//	state, ok := Learn(answer)        // an acknowledgement that the end itself has sent, the last thing before it went
//	table.Add(flow, state)
//	segment, ok := Parse(packet)      // what a peer sends
//	verdict, answer := table.Judge(segment, now)
//
// [Pass] is the verdict of everything that is not exactly a probe of a known connection: data, even of one byte; what
// opens or closes; window updates, whose number is the next and not the one before; duplicates; whatever acknowledges
// other than what the end has sent; and whatever has flags or options that mean something. None of these is answered:
// nobody may acknowledge what was not delivered, or swallow what the end waits for.
//
// # Timestamps
//
// The clock of a sandbox that is restored is later than when it was saved by the time that has passed, or the same where the
// time of day was set back; never earlier. So an answer has always the value that the state was learned with. It is not
// less than any that the peer has seen, nor more than any that it will see; the check against old segments (RFC 7323,
// section 5) takes them all. Echoed is the peer's newest value.
//
// # A connection whose window is closed is not answered for
//
// Its peer asks in the same way whether the window is open again. That depends on a program that doesn't run.
//
// Both IPv4 and IPv6. Nothing in here does I/O, reads a clock or keeps what it is given.
package keepalive

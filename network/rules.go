package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names of the gate's named objects.
const (
	counterActivity = "activity"
	counterUnsaid   = "unsaid"
	counterSpoofed  = "spoofed"

	chainFromSandbox = "from-sandbox"
	chainToSandbox   = "to-sandbox"
	chainActivity    = "activity"
	chainUnsaid      = "unsaid"
	chainProxied     = "proxied"
	chainLadder      = "ladder"

	shortestTCP, longestTCP = 20, 60 // header lengths
	ipv4Header              = 20
)

// ruleset is the whole of the gate's table for one position.
type ruleset struct {
	table     *nftables.Table
	addresses *nftables.Set // the pod's
	ports     *nftables.Set // TCP's that the workload listens on
	datagrams *nftables.Set // UDP's that it has bound
	empty     *nftables.Set // (TCP header length, IP length) with no payload or one byte
	chains    []chain
}

func newRuleset(primary string, forwarded bool, g Gate) *ruleset {
	t := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	r := &ruleset{
		table:     t,
		addresses: &nftables.Set{Table: t, ID: 1, Name: "addresses", KeyType: nftables.TypeIPAddr},
		ports:     &nftables.Set{Table: t, ID: 2, Name: "ports", KeyType: nftables.TypeInetService},
		datagrams: &nftables.Set{Table: t, ID: 5, Name: "datagrams", KeyType: nftables.TypeInetService},
		// The key's types are of the right sizes; what they are called is for nft's
		// listing only.
		empty: &nftables.Set{
			Table: t, ID: 3, Name: "empty", Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		},
	}
	r.chains = []chain{
		r.activity(chainActivity, counterActivity), r.activity(chainUnsaid, counterActivity, counterUnsaid), proxied(), ladder(),
		r.fromSandbox(g), r.toSandbox(g),
		r.prerouting(primary), forward(primary, forwarded), output(g), r.errors(g),
	}
	return r
}

// prerouting divides the traffic; what neither comes from the sandbox nor is
// addressed to the pod is not the gate's business.
func (r *ruleset) prerouting(primary string) chain {
	return chain{
		name: "prerouting", hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityMangle, policy: nftables.ChainPolicyAccept,
		rules: []rule{
			when("from the sandbox", from(outerName), goTo(chainFromSandbox)),
			when("to the pod", from(primary), isIPv4(), inSet(destinationOffset, r.addresses), goTo(chainToSandbox)),
		},
	}
}

func (r *ruleset) fromSandbox(g Gate) chain {
	c := chain{name: chainFromSandbox, rules: []rule{
		when("to the link's own address", isIPv4(), toAddress(gateway4), goTo(chainLadder)),
		when("no IPv6 yet", notIPv4(), count(counterSpoofed), drop()),
		when("spoofed", notInSet(sourceOffset, r.addresses), count(counterSpoofed), drop()),
	}}
	if g.Position != GateOpen {
		c.rules = append(c.rules, when("unsaid", jump(chainUnsaid)), when("cut", drop()))
		return c
	}
	c.rules = append(c.rules,
		when("activity", jump(chainActivity)),
		when("of P's sockets", ofSocket(expr.SocketKeyTransparent), jump(chainProxied)),
	)
	return c
}

func (r *ruleset) toSandbox(g Gate) chain {
	c := chain{name: chainToSandbox, rules: []rule{
		when("activity", jump(chainActivity)),
		when("of P's sockets", ofSocket(expr.SocketKeyTransparent), jump(chainProxied)),
		when("errors of P's sockets", ofErrorsSocket(expr.SocketKeyTransparent), jump(chainProxied)),
	}}
	if g.Position == GateHeld {
		c.rules = append(c.rules, when("held: P completes the handshake", whole(), opening(), toPort(r.ports), leave()))
	}
	if g.Position != GateOpen {
		c.rules = append(c.rules, r.answered(g)...)
	}
	c.rules = append(c.rules, when(positionPrefix+g.Position.String(), mark(MarkSandbox)))
	return c
}

// answered is what P's kernel says for a sandbox that is away, as that would say it itself. Fragments wake: all of a packet's
// are to meet in the sandbox, and of most nobody can tell what they are for.
func (r *ruleset) answered(g Gate) (rules []rule) {
	if g.Ports != nil {
		rules = append(rules, when(refusesTCP, whole(), opening(), notToPort(r.ports), leave()))
	}
	if g.Datagrams != nil {
		rules = append(rules, when(refusesUDP, whole(), protocol(unix.IPPROTO_UDP), notToPort(r.datagrams), leave()))
	}
	return append(rules, when("P answers echo", whole(), icmpType(icmpEchoRequest), leave()))
}

const (
	positionPrefix       = "position "
	icmpEchoRequest byte = 8
	icmpEchoReply   byte = 0
	icmpUnreachable byte = 3
	icmpExceeded    byte = 11
	icmpParameter   byte = 12
	portUnreachable byte = 3 // a code of icmpUnreachable

	refusesTCP = "P refuses connections"
	refusesUDP = "P refuses datagrams"
)

// proxied is asked for packets of a transparent socket. The listener is bound to
// the wildcard and passed over, else it would claim the sandbox's own
// connections from its port. A handshake's last ACK belongs to a request socket,
// for which "wildcard" does not match at all.
func proxied() chain {
	return chain{name: chainProxied, rules: []rule{
		when("a listener", ofSocket(expr.SocketKeyWildcard), leave()),
		when("a listener's error", ofErrorsSocket(expr.SocketKeyWildcard), leave()),
		when("a connection held by P", mark(MarkLocal), accept()),
	}}
}

// ladder lets nothing reach the link's own address but answers to the ladder's
// probes, and those in every position. To a SYN-ACK P's kernel then says RST, to
// the pod's address without a mark, and so to itself.
func ladder() chain {
	return chain{name: chainLadder, rules: []rule{
		when("echo reply", icmpType(icmpEchoReply), accept()),
		when("answer to a SYN", tcpFlags(ack, expr.CmpOpEq, ack), accept()),
		when("nothing else", drop()),
	}}
}

// activity counts what is use: datagrams, and segments that open, close or carry
// data. Not bare ACKs, nor keep-alives with the one byte that some stacks send
// (a byte of real data has PSH). Most packets of a busy connection are long and
// decided by the first two comparisons.
func (r *ruleset) activity(name string, counters ...string) chain {
	var counted []expr.Any
	for _, c := range counters {
		counted = append(counted, count(c)...)
	}
	return chain{name: name, rules: []rule{
		when("datagram", protocol(unix.IPPROTO_UDP), counted, leave()),
		when("neither", notProtocol(unix.IPPROTO_TCP), leave()),
		when("long", longer(ipv4Header+longestTCP+1), counted, leave()),
		when("opens, closes or pushes", tcpFlags(fin|syn|psh, expr.CmpOpNeq, 0), counted, leave()),
		when("data", sizedNotIn(r.empty), counted),
	}}
}

// forward keeps P from routing for its neighbours, which it did not do before.
func forward(primary string, forwarded bool) chain {
	c := chain{name: "forward", hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}
	if !forwarded {
		c.rules = []rule{when("no router", from(primary), notTo(outerName), drop())}
	}
	return c
}

// output: P must not tell peers that the sandbox can't be reached; of its closed ports it tells.
func output(g Gate) chain {
	c := chain{name: "output", hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}
	if g.Position != GateOpen {
		c.rules = []rule{
			when("a closed port", isIPv4(), icmpTypeAndCode(icmpUnreachable, portUnreachable), accept()),
			when("unreachable", isIPv4(), icmpType(icmpUnreachable), drop()),
		}
	}
	return c
}

// errors sends the sandbox what P's kernel has to say of its packets: too long for the way on, no way on, no hop left. It is
// said to the pod's address, which is P's own, and from there; a netstack takes no packet from its own address.
func (r *ruleset) errors(g Gate) chain {
	c := chain{
		name: "errors", kind: nftables.ChainTypeRoute,
		hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityMangle, policy: nftables.ChainPolicyAccept,
	}
	if g.Position != GateOpen {
		return c // nothing of the sandbox's passes
	}
	for _, kind := range []byte{icmpUnreachable, icmpExceeded, icmpParameter} {
		c.rules = append(c.rules, when(fmt.Sprintf("ICMP type %d", kind),
			isIPv4(), icmpType(kind), inSet(destinationOffset, r.addresses), fromAddress(gateway4), mark(MarkSandbox)))
	}
	return c
}

// write puts the table as it is to be into one batch. Objects that exist are
// kept, so the counters go on.
func (r *ruleset) write(c *nftables.Conn, addresses []netip.Addr, g Gate) error {
	c.AddTable(r.table)
	for _, name := range []string{counterActivity, counterUnsaid, counterSpoofed} {
		c.AddObj(&nftables.CounterObj{Table: r.table, Name: name})
	}
	if err := r.writeSets(c, addresses, g); err != nil {
		return err
	}
	var added []*nftables.Chain
	for _, ch := range r.chains {
		added = append(added, c.AddChain(ch.in(r.table)))
		c.FlushChain(added[len(added)-1])
	}
	for i, ch := range r.chains {
		for _, rule := range ch.rules {
			c.AddRule(&nftables.Rule{Table: r.table, Chain: added[i], Exprs: rule.exprs, UserData: comment(rule.comment)})
		}
	}
	return nil
}

func (r *ruleset) writeSets(c *nftables.Conn, addresses []netip.Addr, g Gate) error {
	var addressKeys []nftables.SetElement
	for _, a := range addresses {
		addressKeys = append(addressKeys, nftables.SetElement{Key: a.AsSlice()})
	}
	for _, s := range []struct {
		set  *nftables.Set
		keys []nftables.SetElement
	}{{r.addresses, addressKeys}, {r.ports, portKeys(g.Ports)}, {r.datagrams, portKeys(g.Datagrams)}, {r.empty, emptySizes()}} {
		if err := c.AddSet(s.set, nil); err != nil {
			return fmt.Errorf("nft set %s: %w", s.set.Name, err)
		}
		c.FlushSet(s.set)
		if len(s.keys) == 0 {
			continue
		}
		if err := c.SetAddElements(s.set, s.keys); err != nil {
			return fmt.Errorf("nft set %s: %w", s.set.Name, err)
		}
	}
	return nil
}

func portKeys(ports []uint16) (keys []nftables.SetElement) {
	for _, p := range ports {
		keys = append(keys, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(p)})
	}
	return keys
}

// emptySizes lists each TCP header length with the IP length that leaves it no
// payload, or one byte. A packet with IP options is not listed and so counts.
func emptySizes() []nftables.SetElement {
	var keys []nftables.SetElement
	for length := uint16(shortestTCP); length <= longestTCP; length += 4 {
		for payload := range uint16(2) {
			key := make([]byte, 8)
			key[0] = byte(length/4) << 4
			binary.BigEndian.PutUint16(key[4:], ipv4Header+length+payload)
			keys = append(keys, nftables.SetElement{Key: key})
		}
	}
	return keys
}

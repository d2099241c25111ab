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
	ipv6Header              = 40
)

// ruleset is the whole of the gate's table for one position.
type ruleset struct {
	table     *nftables.Table
	datagrams *nftables.Set // UDP's ports that the workload has bound
	families  []*familyRules
	chains    []chain
}

// familyRules are what packets of one family meet.
type familyRules struct {
	*family
	addresses *nftables.Set // the pod's
	ports     *nftables.Set // TCP's that the workload listens on
	empty     *nftables.Set // (TCP header length, IP length) with no payload or one byte
	datagrams *nftables.Set
	young     *nftables.Set // (address, port) of clients; see youngRules; nil where no probes come from
	asked     *nftables.Set // nil but for a gate with Clients; see askedSet
}

func newRuleset(l *Link, g Gate) *ruleset {
	t := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	r := &ruleset{
		table:     t,
		datagrams: &nftables.Set{Table: t, ID: 5, Name: "datagrams", KeyType: nftables.TypeInetService},
	}
	for _, f := range l.attachment.families() {
		fr := newFamilyRules(f, t, r.datagrams)
		if len(f.fromProbers(l.probers)) > 0 {
			fr.young = f.youngSet(t)
		}
		if g.Clients {
			fr.asked = f.askedSet(t)
		}
		r.families = append(r.families, fr)
	}
	r.chains = append(r.chains, seen())
	for _, f := range r.families {
		r.chains = append(r.chains,
			f.activity(append(f.ignored(l.ignore), f.youngRules()...), chainActivity, counterActivity),
			f.activity(f.ignored(l.ignore), chainUnsaid, counterActivity, counterUnsaid), f.proxied(), f.ladder(),
			f.fromSandbox(g), f.toSandbox(g))
		if f.young != nil {
			r.chains = append(r.chains, f.probersChain(l), f.youngChain())
		}
		if f.asked != nil {
			r.chains = append(r.chains, f.asks(), f.clients(l))
		}
	}
	r.chains = append(r.chains, r.prerouting(l.attachment.Interface), r.input(l.attachment.Interface, g), r.forward(l.attachment.Interface, l.found), r.output(g), r.errors(g))
	return r
}

func newFamilyRules(f *family, t *nftables.Table, datagrams *nftables.Set) *familyRules {
	r := &familyRules{
		family:    f,
		addresses: &nftables.Set{Table: t, ID: 1, Name: "addresses" + f.suffix, KeyType: nftables.TypeIPAddr},
		ports:     &nftables.Set{Table: t, ID: 2, Name: "ports" + f.suffix, KeyType: nftables.TypeInetService},
		// The key's types are of the right sizes; what they are called is for nft's
		// listing only.
		empty: &nftables.Set{
			Table: t, ID: 3, Name: "empty" + f.suffix, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		},
		datagrams: datagrams,
	}
	if f == ip6 {
		r.addresses.KeyType = nftables.TypeIP6Addr
		r.addresses.ID, r.ports.ID, r.empty.ID = 6, 7, 8
	}
	return r
}

// prerouting divides the traffic; what neither comes from the sandbox nor is
// addressed to the pod is not the gate's business. P's neighbours go on to find
// it by the address that it shares with the sandbox.
func (r *ruleset) prerouting(primary string) chain {
	c := chain{
		name: "prerouting", hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityMangle, policy: nftables.ChainPolicyAccept,
	}
	for _, f := range r.families {
		c.rules = append(c.rules, when("from the sandbox by "+f.name, from(outerName), f.is(), goTo(chainFromSandbox+f.suffix)))
	}
	c.rules = append(c.rules, when("of what the pod doesn't have", from(outerName), count(counterSpoofed), drop()))
	for _, f := range r.families {
		if f.family == ip6 {
			c.rules = append(c.rules, when("P's neighbours", from(primary), f.is(), f.icmpTypes(routerSolicitation, redirect), accept()))
		}
		c.rules = append(c.rules, when("to the pod by "+f.name, from(primary), f.is(), f.inSet(f.destination, f.addresses), goTo(chainToSandbox+f.suffix)))
	}
	return c
}

func (f *familyRules) fromSandbox(g Gate) chain {
	c := chain{name: chainFromSandbox + f.suffix}
	if f.family == ip6 {
		c.rules = []rule{
			when("what the sandbox says of its neighbours", f.icmpTypes(routerSolicitation, redirect), drop()),
			when("what it says of groups", f.icmpTypes(listenerQuery, listenerDone), drop()),
			when("what it says of groups, version 2", f.icmpType(listenerReport2), drop()),
		}
	}
	c.rules = append(c.rules,
		when("to the link's own address", f.toGateway(), goTo(chainLadder+f.suffix)),
		when("spoofed", f.notInSet(f.source, f.addresses), count(counterSpoofed), drop()),
	)
	if g.Position != GateOpen {
		c.rules = append(c.rules, when("unsaid", jump(chainUnsaid+f.suffix)), when("cut", showWhole(earlyGroup), drop()))
		return c
	}
	c.rules = append(c.rules,
		when("activity", jump(chainActivity+f.suffix)),
	)
	if f.asked != nil {
		c.rules = append(c.rules, when("asks", jump(chainAsks+f.suffix)))
	}
	c.rules = append(c.rules, when("of P's sockets", ofSocket(expr.SocketKeyTransparent), jump(chainProxied+f.suffix)))
	return c
}

func (f *familyRules) toSandbox(g Gate) chain {
	c := chain{name: chainToSandbox + f.suffix, rules: []rule{when("activity", jump(chainActivity+f.suffix))}}
	if f.asked != nil {
		c.rules = append(c.rules, when(byClients, jump(chainClients+f.suffix)))
	}
	c.rules = append(c.rules,
		when("of P's sockets", ofSocket(expr.SocketKeyTransparent), jump(chainProxied+f.suffix)),
		when("errors of P's sockets", f.ofErrorsSocket(expr.SocketKeyTransparent), jump(chainProxied+f.suffix)),
	)
	if g.Position == GateHeld {
		c.rules = append(c.rules,
			when("held: P completes the handshake", f.whole(unix.IPPROTO_TCP), opening(), toPort(f.ports), leave()))
	}
	if g.Position != GateOpen {
		c.rules = append(c.rules, f.answered(g)...)
	}
	c.rules = append(c.rules, when(positionPrefix+g.Position.String(), mark(MarkSandbox)))
	return c
}

// answered is what P's kernel says for a sandbox that is away, as that would say it itself. Fragments wake: all of a packet's
// are to meet in the sandbox, and of most nobody can tell what they are for.
func (f *familyRules) answered(g Gate) (rules []rule) {
	if g.Ports != nil {
		rules = append(rules, when(refusesTCP, f.whole(unix.IPPROTO_TCP), opening(), notToPort(f.ports), leave()))
	}
	if g.Datagrams != nil {
		rules = append(rules,
			when(refusesUDP, f.whole(unix.IPPROTO_UDP), protocol(unix.IPPROTO_UDP), notToPort(f.datagrams), leave()))
	}
	return append(rules, when("P answers echo", f.whole(f.icmp), f.icmpType(f.echoRequest), leave()))
}

const (
	positionPrefix = "position "

	// Types of IPv4's ICMP messages.
	icmpEchoReply   byte = 0
	icmpUnreachable byte = 3
	icmpEchoRequest byte = 8
	icmpExceeded    byte = 11
	icmpParameter   byte = 12

	// Types of ICMPv6's messages about neighbours, from routerSolicitation to redirect, and about groups.
	routerSolicitation, redirect byte = 133, 137
	listenerQuery, listenerDone  byte = 130, 132
	listenerReport2              byte = 143

	refusesTCP = "P refuses connections"
	refusesUDP = "P refuses datagrams"
)

// proxied is asked for packets of a transparent socket. The listener is bound to
// the wildcard and passed over, else it would claim the sandbox's own
// connections from its port. A handshake's last ACK belongs to a request socket,
// for which "wildcard" does not match at all.
func (f *familyRules) proxied() chain {
	return chain{name: chainProxied + f.suffix, rules: []rule{
		when("a listener", ofSocket(expr.SocketKeyWildcard), leave()),
		when("a listener's error", f.ofErrorsSocket(expr.SocketKeyWildcard), leave()),
		when("a connection held by P", mark(MarkLocal), accept()),
	}}
}

// ladder lets nothing reach the link's own address but answers to the ladder's
// probes, and those in every position. To a SYN-ACK P's kernel then says RST, to
// the pod's address without a mark, and so to itself.
func (f *familyRules) ladder() chain {
	return chain{name: chainLadder + f.suffix, rules: []rule{
		when("echo reply", f.icmpType(f.echoReply), accept()),
		when("answer to a SYN", tcpFlags(ack, expr.CmpOpEq, ack), accept()),
		when("nothing else", drop()),
	}}
}

// activity counts what is use: datagrams, and segments that open, close or carry
// data. Not bare ACKs, nor keep-alives with the one byte that some stacks send
// (a byte of real data has PSH). Most packets of a busy connection are long and
// decided by the first two comparisons. What is before them is not counted.
func (f *familyRules) activity(before []rule, name string, counters ...string) chain {
	var counted []expr.Any
	for _, c := range counters {
		counted = append(counted, count(c)...)
	}
	return chain{name: name + f.suffix, rules: append(before,
		when("datagram", protocol(unix.IPPROTO_UDP), counted, goTo(chainSeen)),
		when("neither", notProtocol(unix.IPPROTO_TCP), leave()),
		when("long", f.longer(longestTCP+1), counted, goTo(chainSeen)),
		when("opens, closes or pushes", tcpFlags(fin|syn|psh, expr.CmpOpNeq, 0), counted, goTo(chainSeen)),
		when("data", f.sizedNotIn(f.empty), counted, goTo(chainSeen)),
	)}
}

// forward keeps P from routing for its neighbours, which it did not do before. Of IPv6 no interface forwards for itself: with
// the pod's, all others of P's would do so, too.
func (r *ruleset) forward(primary string, found record) chain {
	c := chain{name: "forward", hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}
	for _, f := range r.families {
		switch {
		case found.forwarded(f.family):
		case f.family == ip6:
			c.rules = append(c.rules, when("no router of "+f.name, f.is(), notFrom(outerName), notTo(outerName), drop()))
		default:
			c.rules = append(c.rules, when("no router", f.is(), from(primary), notTo(outerName), drop()))
		}
	}
	return c
}

// input refuses what P would hold for a port that takes no IPv6: the listener has both families.
func (r *ruleset) input(primary string, g Gate) chain {
	c := chain{name: "input", hook: nftables.ChainHookInput, priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}
	for _, f := range r.families {
		if f.family == ip6 && g.Position != GateOpen && g.Ports != nil {
			c.rules = append(c.rules, when("no port of IPv6's",
				from(primary), f.is(), f.inSet(f.destination, f.addresses), opening(), notToPort(f.ports), reset()))
		}
	}
	return c
}

// output: P must not tell peers that the sandbox can't be reached; of its closed ports it tells.
func (r *ruleset) output(g Gate) chain {
	c := chain{name: "output", hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}
	if g.Position == GateOpen {
		return c
	}
	for _, f := range r.families {
		c.rules = append(c.rules,
			when("a closed port of "+f.name, f.is(), f.icmpTypeAndCode(f.unreachable, f.portUnreachable), accept()),
			when("unreachable by "+f.name, f.is(), f.icmpType(f.unreachable), drop()))
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
	for _, f := range r.families {
		for _, kind := range f.family.errors {
			c.rules = append(c.rules, when(fmt.Sprintf("%s's ICMP type %d", f.name, kind),
				f.is(), f.icmpType(kind), f.inSet(f.destination, f.addresses), f.fromGateway(), mark(MarkSandbox)))
		}
	}
	return c
}

// write puts the table as it is to be into one batch. Objects that exist are
// kept, so the counters go on.
func (r *ruleset) write(c *nftables.Conn, a *Attachment, g Gate) error {
	c.AddTable(r.table)
	for _, name := range []string{counterActivity, counterUnsaid, counterSpoofed, counterYoung} {
		c.AddObj(&nftables.CounterObj{Table: r.table, Name: name})
	}
	if g.Clients {
		c.AddObj(&nftables.CounterObj{Table: r.table, Name: counterClients})
	}
	if err := r.writeSets(c, a, g); err != nil {
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

func (r *ruleset) writeSets(c *nftables.Conn, a *Attachment, g Gate) error {
	type filled struct {
		set  *nftables.Set
		keys []nftables.SetElement
	}
	sets := []filled{{r.datagrams, portKeys(g.Datagrams)}}
	for _, f := range r.families {
		sets = append(sets, filled{f.addresses, addressKeys(a.of(f.family))}, filled{f.ports, portKeys(g.portsOf(f.family))}, filled{f.empty, f.emptySizes()})
	}
	for _, f := range r.families {
		if f.young == nil {
			continue
		}
		// What is in it stays.
		if err := c.AddSet(f.young, nil); err != nil {
			return fmt.Errorf("nft set %s: %w", f.young.Name, err)
		}
	}
	for _, f := range r.families {
		if f.asked != nil {
			sets = append(sets, filled{f.asked, nil})
		}
	}
	for _, s := range sets {
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

func addressKeys(list []netip.Addr) (keys []nftables.SetElement) {
	for _, a := range list {
		keys = append(keys, nftables.SetElement{Key: a.AsSlice()})
	}
	return keys
}

func portKeys(ports []uint16) (keys []nftables.SetElement) {
	for _, p := range ports {
		keys = append(keys, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(p)})
	}
	return keys
}

// emptySizes lists each TCP header length with the IP length that leaves it no
// payload, or one byte. A packet with IP options is not listed and so counts.
func (f *family) emptySizes() []nftables.SetElement {
	var keys []nftables.SetElement
	for length := uint16(shortestTCP); length <= longestTCP; length += 4 {
		for payload := range uint16(2) {
			key := make([]byte, 8)
			key[0] = byte(length/4) << 4
			binary.BigEndian.PutUint16(key[4:], f.counted+length+payload)
			keys = append(keys, nftables.SetElement{Key: key})
		}
	}
	return keys
}

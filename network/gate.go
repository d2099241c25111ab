package network

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Position says who gets the packets that are addressed to the pod.
type Position int

// The gate's positions; see the package's documentation.
const (
	GateOpen Position = iota
	GateHeld
	GateParked
)

func (p Position) String() string {
	switch p {
	case GateOpen:
		return "open"
	case GateHeld:
		return "held"
	case GateParked:
		return "parked"
	}
	return fmt.Sprintf("Position(%d)", int(p))
}

func parsePosition(s string) (Position, bool) {
	for _, p := range []Position{GateOpen, GateHeld, GateParked} {
		if p.String() == s {
			return p, true
		}
	}
	return GateOpen, false
}

// Gate is a position, and the ports that the workload has open: P refuses the
// others for it while it is away, and holds those of TCP. A list that is nil is
// not known, and then nothing is refused by it. Lists are sorted when read back.
// Of gVisor's sandboxes the ports of UDP can't be known: it doesn't list IPv6's.
type Gate struct {
	Position  Position
	Ports     []uint16 // TCP's that it listens on
	Only4     []uint16 // those of Ports that take no IPv6: by that they are closed
	Datagrams []uint16 // UDP's that it has bound
	Clients   bool     // of an open gate: others' use is counted by itself, see ByClients; Ports are known then
}

// normal is g as it is read back from the table of a pod with these addresses.
func (g Gate) normal(a *Attachment) Gate {
	g.Ports, g.Datagrams = sorted(g.Ports), sorted(g.Datagrams)
	if !a.carries(ip4) {
		g.Ports = g.portsOf(ip6)
	}
	g.Only4 = slices.DeleteFunc(sorted(g.Only4), func(p uint16) bool { return !a.carries(ip6) || !slices.Contains(g.Ports, p) })
	if len(g.Only4) == 0 {
		g.Only4 = nil
	}
	g.Clients = g.Clients && g.Position == GateOpen
	if g.Position == GateHeld && g.Ports == nil { // what nobody holds can't wait
		g.Ports = []uint16{}
	}
	return g
}

// portsOf are TCP's that take connections of a family; nil when they are not known.
func (g Gate) portsOf(f *family) []uint16 {
	if f == ip4 {
		return g.Ports
	}
	return slices.DeleteFunc(slices.Clone(g.Ports), func(p uint16) bool { return slices.Contains(g.Only4, p) })
}

// sorted keeps nil apart from empty.
func sorted(ports []uint16) []uint16 {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	return slices.Compact(ports)
}

func (g Gate) equal(o Gate) bool {
	return g.Position == o.Position && slices.Equal(g.Ports, o.Ports) && slices.Equal(g.Only4, o.Only4) && slices.Equal(g.Datagrams, o.Datagrams) &&
		g.Clients == o.Clients
}

// SetGate brings the gate into a position, in one transaction of the kernel: no
// packet meets anything between. Counters go on. It also mends a table that
// somebody changed. When it opens, packets go P's way until Quicken.
func (l *Link) SetGate(ctx context.Context, g Gate) error {
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	return l.setGate(ctx, g)
}

func (l *Link) setGate(ctx context.Context, g Gate) error {
	if _, ok := parsePosition(g.Position.String()); !ok {
		return fmt.Errorf("gate: no such position: %s", g.Position)
	}
	g = g.normal(l.attachment)
	if g.Position != GateOpen || g.Clients {
		if err := l.fast.closing(); err != nil {
			return fmt.Errorf("set gate %s: %w", g.Position, err)
		}
	}
	if err := l.writeGate(ctx, g, false); err != nil {
		// Something of ours was changed to what can't be brought back in place.
		if again := l.writeGate(ctx, g, true); again != nil {
			return fmt.Errorf("set gate %s: %w", g.Position, err)
		}
	}
	l.mu.Lock()
	l.gate = g
	l.mu.Unlock()
	if g.Position == GateOpen {
		l.passEarly()
	}
	return l.followGate(g)
}

// followGate lets the fast path know of an open gate.
func (l *Link) followGate(g Gate) error {
	if g.Position != GateOpen || g.Clients {
		return nil
	}
	return l.fast.opened()
}

// Quicken lets packets take the fast path, where nothing forbids it. An open gate
// doesn't wait for it, since it takes longer than the rest; Counters and Check do
// it, too.
func (l *Link) Quicken(ctx context.Context) error { return l.heedObstacles(ctx) }

func (l *Link) writeGate(ctx context.Context, g Gate, anew bool) error {
	rs := l.ruleset(g)
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		if anew {
			c.AddTable(rs.table)
			c.DelTable(rs.table)
		}
		if err := rs.write(c, l.attachment, g); err != nil {
			return err
		}
		return c.Flush()
	})
}

func (l *Link) ruleset(g Gate) *ruleset { return newRuleset(l, g) }

// Gate reads the position and the ports back from the kernel. ErrNoGate when
// the table is gone. An open gate doesn't tell a list that is empty from one that
// isn't known.
func (l *Link) Gate(ctx context.Context) (g Gate, err error) {
	rs := l.ruleset(Gate{})
	err = l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		rules, err := c.GetRules(rs.table, &nftables.Chain{Name: chainToSandbox + rs.families[0].suffix})
		if err != nil {
			return fmt.Errorf("read gate: %w", err)
		}
		if len(rules) == 0 {
			return ErrNoGate
		}
		word, _ := strings.CutPrefix(commentOf(rules[len(rules)-1]), positionPrefix)
		position, ok := parsePosition(word)
		if !ok {
			return ErrNoGate
		}
		g.Position = position
		knows := func(comment string) bool {
			return slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return commentOf(r) == comment })
		}
		g.Clients = knows(byClients)
		if g.Ports, err = readPorts(c, rs.families[0].ports, knows(refusesTCP)); err != nil {
			return err
		}
		if g.Only4, err = rs.readOnly4(c, g.Ports); err != nil {
			return err
		}
		g.Datagrams, err = readPorts(c, rs.datagrams, knows(refusesUDP))
		return err
	})
	return g, err
}

// readOnly4 finds which ports IPv6's rules don't have.
func (r *ruleset) readOnly4(c *nftables.Conn, ports []uint16) (only []uint16, err error) {
	if len(r.families) < len(families) {
		return nil, nil
	}
	sets, err := c.GetSets(r.table)
	if err != nil {
		return nil, fmt.Errorf("read the gate's ports: %w", err)
	}
	if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == r.families[1].ports.Name }) {
		return nil, nil // a table of before it had IPv6; it will be written anew
	}
	six, err := readPorts(c, r.families[1].ports, false)
	for _, p := range ports {
		if !slices.Contains(six, p) {
			only = append(only, p)
		}
	}
	return only, err
}

// readPorts reads a list, which is empty and not nil when it is known.
func readPorts(c *nftables.Conn, s *nftables.Set, known bool) ([]uint16, error) {
	list, err := c.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("read the gate's ports: %w", err)
	}
	var ports []uint16
	if known {
		ports = []uint16{}
	}
	for _, e := range list {
		if len(e.Key) >= 2 {
			ports = append(ports, binary.BigEndian.Uint16(e.Key))
		}
	}
	slices.Sort(ports)
	return ports, nil
}

// wanted is the position last set.
func (l *Link) wanted() Gate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate
}

// setGateAgain mends the table.
func (l *Link) setGateAgain(ctx context.Context) error {
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	return l.setGate(ctx, l.wanted())
}

// checkGate compares the table with what it is to be: chains, their hooks, and
// each rule by its comment.
func (l *Link) checkGate(ctx context.Context) error {
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	want := l.wanted()
	have, err := l.Gate(ctx)
	if err != nil {
		return err
	}
	if !have.equal(want) {
		return fmt.Errorf("gate is %v, not %v", have, want)
	}
	rs := l.ruleset(want)
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		if err := checkChains(c, rs.table, rs.chains); err != nil {
			return err
		}
		return rs.checkAddresses(c, l.attachment)
	})
}

func (r *ruleset) checkAddresses(c *nftables.Conn, a *Attachment) error {
	want := map[*nftables.Set]int{}
	for _, f := range r.families {
		want[f.addresses], want[f.empty] = len(a.of(f.family)), len(f.emptySizes())
	}
	for set, n := range want {
		list, err := c.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("nft set %s: %w", set.Name, err)
		}
		if len(list) != n {
			return fmt.Errorf("nft set %s has %d elements, not %d", set.Name, len(list), n)
		}
	}
	return nil
}

func checkChains(c *nftables.Conn, t *nftables.Table, want []chain) error {
	list, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return fmt.Errorf("list nft chains: %w", err)
	}
	for _, w := range want {
		i := slices.IndexFunc(list, func(h *nftables.Chain) bool { return h.Table.Name == t.Name && h.Name == w.name })
		if i < 0 {
			return fmt.Errorf("nft chain %s is missing", w.name)
		}
		if !sameHook(list[i], w) {
			return fmt.Errorf("nft chain %s is hooked elsewhere", w.name)
		}
		if err := checkRules(c, t, w); err != nil {
			return err
		}
	}
	return nil
}

func sameHook(have *nftables.Chain, want chain) bool {
	if want.hook == nil || have.Hooknum == nil || have.Priority == nil {
		return (want.hook == nil) == (have.Hooknum == nil)
	}
	return *have.Hooknum == *want.hook && *have.Priority == *want.priority
}

func checkRules(c *nftables.Conn, t *nftables.Table, want chain) error {
	rules, err := c.GetRules(t, &nftables.Chain{Name: want.name})
	if err != nil {
		return fmt.Errorf("rules of nft chain %s: %w", want.name, err)
	}
	if len(rules) != len(want.rules) {
		return fmt.Errorf("nft chain %s has %d rules, not %d", want.name, len(rules), len(want.rules))
	}
	for i, r := range rules {
		if commentOf(r) != want.rules[i].comment {
			return fmt.Errorf("nft chain %s: rule %d is not %q", want.name, i, want.rules[i].comment)
		}
	}
	return nil
}

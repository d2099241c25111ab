package network

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// The keeper's chain comes before the gate's, and is in the gate's table only while the sandbox falls asleep, or sleeps.
const (
	chainKeepAlives = "keep-alives"
	setProbes       = "probes"
)

var beforeGate = nftables.ChainPriorityRef(*nftables.ChainPriorityMangle - 1)

// probeSet holds what the probes of known connections look like: the two addresses, and the first twelve bytes of the TCP
// header. What the key's parts are called is for nft's listing only.
func (f *family) probeSet(t *nftables.Table) *nftables.Set {
	s := &nftables.Set{
		Table: t, ID: 4, Name: setProbes + f.suffix, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeMark, nftables.TypeMark, nftables.TypeMark),
	}
	if f == ip6 {
		s.ID = 9
		s.KeyType = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeIP6Addr, nftables.TypeMark, nftables.TypeMark, nftables.TypeMark)
	}
	return s
}

func probeKey(f Flow, st keepalive.State) []byte {
	seq, ack := st.Probe()
	key := append(f.Peer.Addr().AsSlice(), f.Own.Addr().AsSlice()...)
	key = binary.BigEndian.AppendUint16(key, f.Peer.Port())
	key = binary.BigEndian.AppendUint16(key, f.Own.Port())
	key = binary.BigEndian.AppendUint32(key, seq)
	return binary.BigEndian.AppendUint32(key, ack)
}

// suspects takes all that may be a probe. What is for sockets of P is not.
func (l *Link) suspects() []rule {
	var rules []rule
	for _, f := range l.ruleset(Gate{}).families {
		rules = append(rules,
			when("of P's sockets by "+f.name, from(l.attachment.Interface), f.is(), ofSocket(expr.SocketKeyTransparent), jump(chainProxied+f.suffix)),
			when("maybe a keep-alive by "+f.name, from(l.attachment.Interface), f.is(),
				f.inSet(f.destination, f.addresses), f.bare(), show(logGroup), drop()))
	}
	return rules
}

// probes takes exactly the probes of known connections.
func (l *Link) probes() []rule {
	var rules []rule
	for _, f := range l.ruleset(Gate{}).families {
		rules = append(rules, when("a keep-alive by "+f.name,
			from(l.attachment.Interface), f.is(), f.bare(), f.probing(f.probeSet(gateTable())), show(logGroup), drop()))
	}
	return rules
}

func gateTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// bare matches segments with no flag but ACK and no more than a byte, by the gate's set of such sizes.
func (f *familyRules) bare() []expr.Any {
	parts := append(tcpFlags(0xff, expr.CmpOpEq, ack), f.sizedNotIn(f.empty)...)
	parts[len(parts)-1] = &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: f.empty.Name, SetID: f.empty.ID}
	return parts
}

// probing looks the packet up by the bytes of probeKey, in registers that follow one another.
func (f *family) probing(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: 2 * f.address},
		&expr.Payload{DestRegister: unix.NFT_REG32_00 + f.address/2, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 12},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.Name, SetID: s.ID},
	}
}

func show(group uint16) []expr.Any {
	return []expr.Any{&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: group, Snaplen: logCopied}}
}

// showWhole costs next to nothing while nobody looks.
func showWhole(group uint16) []expr.Any {
	return []expr.Any{&expr.Log{Key: 1 << unix.NFTA_LOG_GROUP, Group: group}}
}

// writeKeeper puts the keeper's chain in place, or changes it, in one transaction.
func (l *Link) writeKeeper(ctx context.Context, rules []rule, table *keepalive.Table) error {
	want := chain{
		name: chainKeepAlives, hook: nftables.ChainHookPrerouting, priority: beforeGate, policy: nftables.ChainPolicyAccept, rules: rules,
	}
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		t := c.AddTable(gateTable())
		added := c.AddChain(want.in(t))
		c.FlushChain(added)
		for _, f := range l.attachment.families() {
			if table == nil {
				break
			}
			if err := writeProbes(c, f, t, table); err != nil {
				return err
			}
		}
		for _, r := range want.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: added, Exprs: r.exprs, UserData: comment(r.comment)})
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nft chain %s: %w", chainKeepAlives, err)
		}
		return nil
	})
}

// elementsAtOnce go into a message, whose attributes have a length of sixteen bits.
const elementsAtOnce = 1000

func writeProbes(c *nftables.Conn, f *family, t *nftables.Table, table *keepalive.Table) error {
	s := f.probeSet(t)
	var keys []nftables.SetElement
	table.All(func(flow Flow, st keepalive.State) {
		if familyOf(flow.Own.Addr()) == f {
			keys = append(keys, nftables.SetElement{Key: probeKey(flow, st)})
		}
	})
	err := c.AddSet(s, nil)
	if err == nil {
		c.FlushSet(s)
	}
	for ; err == nil && len(keys) > 0; keys = keys[min(len(keys), elementsAtOnce):] {
		err = c.SetAddElements(s, keys[:min(len(keys), elementsAtOnce)])
	}
	if err != nil {
		return fmt.Errorf("nft set %s: %w", s.Name, err)
	}
	return nil
}

// removeKeeper takes the chain away, if it is there. Where something of it can't be taken away, as what another's rule refers
// to, its rules are: from then on nothing is taken from the sandbox.
func (l *Link) removeKeeper(ctx context.Context) error {
	err := l.deleteKeeper(ctx)
	if err == nil {
		return nil
	}
	empty := l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		c.FlushChain(&nftables.Chain{Table: gateTable(), Name: chainKeepAlives})
		return c.Flush()
	})
	if empty != nil {
		return err
	}
	return nil
}

func (l *Link) deleteKeeper(ctx context.Context) error {
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		t := c.AddTable(gateTable())
		ch := c.AddChain(chain{
			name: chainKeepAlives, hook: nftables.ChainHookPrerouting, priority: beforeGate, policy: nftables.ChainPolicyAccept,
		}.in(t))
		c.FlushChain(ch)
		c.DelChain(ch)
		for _, f := range l.attachment.families() {
			if err := c.AddSet(f.probeSet(t), nil); err != nil { // so that deleting it can't fail
				return fmt.Errorf("nft set %s: %w", setProbes, err)
			}
			c.DelSet(f.probeSet(t))
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nft chain %s: %w", chainKeepAlives, err)
		}
		return nil
	})
}

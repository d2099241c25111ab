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
func probeSet(t *nftables.Table) *nftables.Set {
	return &nftables.Set{
		Table: t, ID: 4, Name: setProbes, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeMark, nftables.TypeMark, nftables.TypeMark),
	}
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
	gate := l.ruleset(Gate{})
	return []rule{
		when("of P's sockets", from(l.attachment.Interface), ofSocket(expr.SocketKeyTransparent), jump(chainProxied)),
		when("maybe a keep-alive", from(l.attachment.Interface), isIPv4(),
			inSet(destinationOffset, gate.addresses), bare(gate.empty), show(), drop()),
	}
}

// probes takes exactly the probes of known connections.
func (l *Link) probes() []rule {
	gate := l.ruleset(Gate{})
	return []rule{
		when("a keep-alive", from(l.attachment.Interface), isIPv4(), bare(gate.empty), probing(probeSet(gate.table)), show(), drop()),
	}
}

func gateTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// bare matches segments with no flag but ACK and no more than a byte, by the gate's set of such sizes.
func bare(sizes *nftables.Set) []expr.Any {
	parts := append(tcpFlags(0xff, expr.CmpOpEq, ack), sizedNotIn(sizes)...)
	parts[len(parts)-1] = &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: sizes.Name, SetID: sizes.ID}
	return parts
}

// probing looks the packet up by the bytes of probeKey, in five registers that follow one another.
func probing(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 8},
		&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 12},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.Name, SetID: s.ID},
	}
}

func show() []expr.Any {
	return []expr.Any{&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: logGroup, Snaplen: logCopied}}
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
		if table != nil {
			if err := writeProbes(c, probeSet(t), table); err != nil {
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

func writeProbes(c *nftables.Conn, s *nftables.Set, table *keepalive.Table) error {
	var keys []nftables.SetElement
	table.All(func(f Flow, st keepalive.State) { keys = append(keys, nftables.SetElement{Key: probeKey(f, st)}) })
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

// removeKeeper takes the chain away, if it is there.
func (l *Link) removeKeeper(ctx context.Context) error {
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		t := c.AddTable(gateTable())
		ch := c.AddChain(chain{
			name: chainKeepAlives, hook: nftables.ChainHookPrerouting, priority: beforeGate, policy: nftables.ChainPolicyAccept,
		}.in(t))
		if err := c.AddSet(probeSet(t), nil); err != nil { // so that deleting it can't fail
			return fmt.Errorf("nft set %s: %w", setProbes, err)
		}
		c.FlushChain(ch)
		c.DelChain(ch)
		c.DelSet(probeSet(t))
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nft chain %s: %w", chainKeepAlives, err)
		}
		return nil
	})
}

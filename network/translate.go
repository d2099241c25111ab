package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// A sandbox that is restored where its pod has another address keeps the one it knows: its listeners are bound to that, and
// its programs have written it down. P is all that differs, and so the packets are rewritten at the very edge of P, where hib0
// takes and gives them: within P there is only the pod's address, inside I only the sandbox's. No connection is tracked for it.

// Follow makes a the attachment of a sandbox that began with another: what that had for an address it keeps. The addresses of
// a family are taken one for one, in their order; those that both have stay themselves.
func (a *Attachment) Follow(earlier *Attachment) {
	a.Inside = nil
	for _, is4 := range []bool{true, false} {
		var now, then []netip.Addr
		for _, p := range a.Addresses {
			if p.Addr().Is4() == is4 {
				now = append(now, p.Addr())
			}
		}
		for _, p := range earlier.Addresses {
			if p.Addr().Is4() == is4 {
				then = append(then, earlier.inside(p.Addr()))
			}
		}
		a.pair(now, then)
	}
}

func (a *Attachment) pair(now, then []netip.Addr) {
	both := func(x netip.Addr) bool { return slices.Contains(now, x) && slices.Contains(then, x) }
	now, then = slices.DeleteFunc(slices.Clone(now), both), slices.DeleteFunc(slices.Clone(then), both)
	for i := range min(len(now), len(then)) {
		if a.Inside == nil {
			a.Inside = make(map[netip.Addr]netip.Addr)
		}
		a.Inside[now[i]] = then[i]
	}
}

// Translated says whether the sandbox has addresses other than the pod's.
func (a *Attachment) Translated() bool { return len(a.Inside) > 0 }

// inside is what the sandbox has for an address of the pod's.
func (a *Attachment) inside(outside netip.Addr) netip.Addr {
	if in, ok := a.Inside[outside]; ok {
		return in
	}
	return outside
}

// outside is the pod's address for one of the sandbox's.
func (a *Attachment) outside(inside netip.Addr) netip.Addr {
	for out, in := range a.Inside {
		if in == inside {
			return out
		}
	}
	return inside
}

// pairs are in an order that stays the same.
func (a *Attachment) pairs() (list [][2]netip.Addr) {
	for out, in := range a.Inside {
		list = append(list, [2]netip.Addr{out, in})
	}
	slices.SortFunc(list, func(x, y [2]netip.Addr) int { return x[0].Compare(y[0]) })
	return list
}

// The hooks of the family netdev, and a place in the ICMP header: behind it comes what the error is about.
const (
	netdevIngress = 0 // NF_NETDEV_INGRESS
	netdevEgress  = 1 // NF_NETDEV_EGRESS
	icmpHeader    = 8
)

func translationTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyNetdev}
}

// translation is the table's chains; none when the addresses are the same on both sides.
func (l *Link) translation() []chain {
	toSandbox := chain{
		name: "to-sandbox", hook: nftables.ChainHookRef(netdevEgress), priority: nftables.ChainPriorityFilter,
		policy: nftables.ChainPolicyAccept, device: outerName,
	}
	fromSandbox := toSandbox
	fromSandbox.name, fromSandbox.hook = "from-sandbox", nftables.ChainHookRef(netdevIngress)
	for _, p := range l.attachment.pairs() {
		out, in := p[0], p[1]
		toSandbox.rules = append(toSandbox.rules, rewrite(true, out, in), rewriteCited(true, out, in))
		fromSandbox.rules = append(fromSandbox.rules, rewrite(false, in, out), rewriteCited(false, in, out))
	}
	return []chain{toSandbox, fromSandbox}
}

// layout says where an IP header has what.
type layout struct {
	protocol, source, destination, length uint32
	checksum                              uint32 // of the header; IPv6 has none
}

func layoutOf(a netip.Addr) layout {
	if a.Is4() {
		return layout{unix.NFPROTO_IPV4, sourceOffset, destinationOffset, 4, 10}
	}
	return layout{unix.NFPROTO_IPV6, 8, 24, 16, 0}
}

// rewrite gives packets to (or else from) one address the other.
func rewrite(destination bool, have, want netip.Addr) rule {
	at := layoutOf(have)
	offset := at.source
	if destination {
		offset = at.destination
	}
	write := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: at.length,
		CsumType: expr.CsumTypeInet, CsumOffset: at.checksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}
	if !have.Is4() { // package nftables sends the flags only with a checksum of the header: one that is written over right after
		write.CsumOffset = offset
	}
	return when(fmt.Sprintf("%s is %s", have, want),
		etherType(have), []expr.Any{header(expr.PayloadBaseNetworkHeader, offset, at.length), compare(expr.CmpOpEq, have.AsSlice()...)},
		[]expr.Any{&expr.Immediate{Register: reg, Data: want.AsSlice()}, write})
}

// rewriteCited does the same in what an ICMP error is about: a packet the other way. The checksum of the header cited is
// left as it is: nobody looks at it.
func rewriteCited(destination bool, have, want netip.Addr) rule {
	at := layoutOf(have)
	offset := icmpHeader + at.destination
	if destination {
		offset = icmpHeader + at.source
	}
	return when(fmt.Sprintf("%s is %s in errors", have, want),
		etherType(have), icmpErrors(have),
		[]expr.Any{header(expr.PayloadBaseTransportHeader, offset, at.length), compare(expr.CmpOpEq, have.AsSlice()...)},
		[]expr.Any{&expr.Immediate{Register: reg, Data: want.AsSlice()}, &expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: at.length,
			CsumType: expr.CsumTypeInet, CsumOffset: 2,
		}})
}

// icmpErrors matches ICMP's messages that cite a packet: types 3 to 12 without echo's, or below 128.
func icmpErrors(of netip.Addr) []expr.Any {
	if of.Is4() {
		return append(protocol(unix.IPPROTO_ICMP), header(expr.PayloadBaseTransportHeader, 0, 1),
			&expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: []byte{icmpUnreachable}, ToData: []byte{icmpParameter}},
			compare(expr.CmpOpNeq, icmpEchoRequest))
	}
	return append(protocol(unix.IPPROTO_ICMPV6), header(expr.PayloadBaseTransportHeader, 0, 1), compare(expr.CmpOpLt, 128))
}

func etherType(of netip.Addr) []expr.Any {
	if of.Is4() {
		return meta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, 0x08, 0x00)
	}
	return meta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, 0x86, 0xdd)
}

// translateStage is a stage of the link only where there is something to be translated.
func (l *Link) translateStage(ctx context.Context) []stage {
	if !l.attachment.Translated() {
		return nil
	}
	return []stage{{
		"translation",
		func() error { return checkTable(ctx, l.pod, translationTable(), l.translation()) },
		func() error { return l.translate(ctx) },
	}}
}

func (l *Link) translate(ctx context.Context) error {
	if err := putTable(ctx, l.pod, translationTable(), l.translation()); err != nil {
		return fmt.Errorf("the pod's address has changed, and is translated for the sandbox (Linux 5.16, nft's family netdev): %w", err)
	}
	return nil
}

// whyTranslated is what keeps the fast path off.
func (a *Attachment) whyTranslated() string {
	var list []string
	for _, p := range a.pairs() {
		list = append(list, fmt.Sprintf("%s is %s inside", p[0], p[1]))
	}
	return "the pod's address is another than the sandbox's: " + strings.Join(list, ", ")
}

// ResetConnections ends those connections of the sandbox's that it made where its pod was as earlier says, and by an address
// which the pod has no more; without earlier, all, as those of a copy are. Nobody can answer it in them, and it is told as if each peer had reset its own. It comes while the sandbox runs and the gate is not open, so that
// no peer hears of it. It returns how many were ended; one that doesn't answer, as one that is being opened, is left alone.
func (l *Link) ResetConnections(ctx context.Context, flows []Flow, earlier *Attachment) (int, error) {
	l.keeperMu.Lock()
	defer l.keeperMu.Unlock()
	flows = slices.DeleteFunc(slices.Clone(flows), func(f Flow) bool {
		own := f.Own.Addr().Unmap()
		return earlier != nil && earlier.outside(own) == l.attachment.outside(own)
	})
	table, err := l.elicit(ctx, l.carried(flows))
	if err != nil || table.Len() == 0 {
		return 0, err
	}
	e, err := l.openElicitor()
	if err != nil {
		return 0, err
	}
	defer l.keeperGone.Go(e.close)
	table.All(func(f Flow, st keepalive.State) {
		if err == nil {
			err = e.send(keepalive.Segment{From: f.Peer, To: f.Own, Seq: st.Expected, Ack: st.Next, Flags: keepalive.RST | keepalive.ACK})
		}
	})
	if err != nil {
		return 0, fmt.Errorf("reset the sandbox's connections: %w", err)
	}
	return table.Len(), nil
}

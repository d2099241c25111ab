package network

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// rule is an nft rule with the comment by which it is known again.
type rule struct {
	comment string
	exprs   []expr.Any
}

// chain is an nft chain with its rules; hook is nil for one that is jumped to.
type chain struct {
	name     string
	kind     nftables.ChainType // "": filter
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	policy   nftables.ChainPolicy
	device   string // of family netdev's
	rules    []rule
}

// when joins matches and a statement to a rule.
func when(comment string, parts ...[]expr.Any) rule {
	return rule{comment: comment, exprs: slices.Concat(parts...)}
}

func (c chain) in(t *nftables.Table) *nftables.Chain {
	out := &nftables.Chain{Table: t, Name: c.name}
	if c.hook != nil {
		policy := c.policy
		out.Type, out.Hooknum, out.Priority, out.Policy = cmp.Or(c.kind, nftables.ChainTypeFilter), c.hook, c.priority, &policy
		out.Device = c.device
	}
	return out
}

func comment(s string) []byte { return userdata.AppendString(nil, userdata.TypeComment, s) }

func commentOf(r *nftables.Rule) string {
	s, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return s
}

const reg = unix.NFT_REG_1

func compare(op expr.CmpOp, data ...byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg, Data: data}
}

func meta(key expr.MetaKey, op expr.CmpOp, data ...byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg}, compare(op, data...)}
}

func fixedName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func from(name string) []expr.Any {
	return meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, fixedName(name)...)
}

func notTo(name string) []expr.Any {
	return meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, fixedName(name)...)
}

func isIPv4() []expr.Any  { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, unix.NFPROTO_IPV4) }
func notIPv4() []expr.Any { return meta(expr.MetaKeyNFPROTO, expr.CmpOpNeq, unix.NFPROTO_IPV4) }

func protocol(p byte) []expr.Any    { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, p) }
func notProtocol(p byte) []expr.Any { return meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, p) }

func header(base expr.PayloadBase, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}
}

const (
	sourceOffset      = 12
	destinationOffset = 16
)

// inSet and notInSet match an address of the IPv4 header against a set.
func inSet(offset uint32, s *nftables.Set) []expr.Any    { return address(offset, s, false) }
func notInSet(offset uint32, s *nftables.Set) []expr.Any { return address(offset, s, true) }

func address(offset uint32, s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseNetworkHeader, offset, 4),
		&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID, Invert: invert},
	}
}

func toAddress(a netip.Addr) []expr.Any {
	return []expr.Any{header(expr.PayloadBaseNetworkHeader, destinationOffset, 4), compare(expr.CmpOpEq, a.AsSlice()...)}
}

// whole matches an IPv4 packet that is no fragment. The kernel reads the ports of one that has none from its data.
func whole() []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseNetworkHeader, 6, 2),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 2, Mask: []byte{0x3f, 0xff}, Xor: []byte{0, 0}},
		compare(expr.CmpOpEq, 0, 0),
	}
}

// TCP flags as bits of the header's byte 13.
const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10
)

func tcpFlags(mask byte, op expr.CmpOp, value byte) []expr.Any {
	return append(protocol(unix.IPPROTO_TCP),
		header(expr.PayloadBaseTransportHeader, 13, 1),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		compare(op, value))
}

// opening matches a connection's first segment.
func opening() []expr.Any { return tcpFlags(fin|syn|rst|ack, expr.CmpOpEq, syn) }

// toPort and notToPort match a destination port against a set.
func toPort(s *nftables.Set) []expr.Any    { return port(s, false) }
func notToPort(s *nftables.Set) []expr.Any { return port(s, true) }

func port(s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseTransportHeader, 2, 2),
		&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID, Invert: invert},
	}
}

func icmpType(t byte) []expr.Any {
	return append(protocol(unix.IPPROTO_ICMP), header(expr.PayloadBaseTransportHeader, 0, 1), compare(expr.CmpOpEq, t))
}

func icmpTypeAndCode(t, code byte) []expr.Any {
	return append(protocol(unix.IPPROTO_ICMP), header(expr.PayloadBaseTransportHeader, 0, 2), compare(expr.CmpOpEq, t, code))
}

func longer(than uint16) []expr.Any {
	return []expr.Any{header(expr.PayloadBaseNetworkHeader, 2, 2), compare(expr.CmpOpGt, binaryutil.BigEndian.PutUint16(than)...)}
}

// sizedNotIn looks the pair (TCP header length, IP length) up in s, in two
// registers that follow one another.
func sizedNotIn(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, Len: 1, Mask: []byte{0xf0}, Xor: []byte{0}},
		&expr.Payload{DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseNetworkHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.Name, SetID: s.ID, Invert: true},
	}
}

// ofSocket matches by the socket in P that a segment belongs to, if any, and ofErrorsSocket by that which sent what an ICMP
// error is about.
func ofSocket(key expr.SocketKey) []expr.Any       { return socket(unix.IPPROTO_TCP, key) }
func ofErrorsSocket(key expr.SocketKey) []expr.Any { return socket(unix.IPPROTO_ICMP, key) }

func socket(of byte, key expr.SocketKey) []expr.Any {
	return append(protocol(of), &expr.Socket{Key: key, Register: reg}, compare(expr.CmpOpEq, 1))
}

// fromAddress makes a the source of an IPv4 packet.
func fromAddress(a netip.Addr) []expr.Any {
	const atChecksum = 10
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: a.AsSlice()},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 4,
			CsumType: expr.CsumTypeInet, CsumOffset: atChecksum,
		},
	}
}

func mark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{
			SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^markMask), Xor: binaryutil.NativeEndian.PutUint32(bit),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}
}

func count(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func drop() []expr.Any         { return verdict(expr.VerdictDrop) }
func accept() []expr.Any       { return verdict(expr.VerdictAccept) }
func leave() []expr.Any        { return verdict(expr.VerdictReturn) }
func jump(c string) []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: c}} }
func goTo(c string) []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: c}} }

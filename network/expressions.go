package network

import (
	"cmp"
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

func notFrom(name string) []expr.Any {
	return meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, fixedName(name)...)
}

func notTo(name string) []expr.Any {
	return meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, fixedName(name)...)
}

// is matches packets of the family.
func (f *family) is() []expr.Any { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, f.nf) }

func protocol(p byte) []expr.Any    { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, p) }
func notProtocol(p byte) []expr.Any { return meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, p) }

func header(base expr.PayloadBase, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}
}

const (
	sourceOffset      = 12
	destinationOffset = 16
)

// inSet and notInSet match an address of the IP header against a set.
func (f *family) inSet(offset uint32, s *nftables.Set) []expr.Any { return f.lookUp(offset, s, false) }
func (f *family) notInSet(offset uint32, s *nftables.Set) []expr.Any {
	return f.lookUp(offset, s, true)
}

func (f *family) lookUp(offset uint32, s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseNetworkHeader, offset, f.address),
		&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID, Invert: invert},
	}
}

// toGateway matches the link's own address.
func (f *family) toGateway() []expr.Any {
	return []expr.Any{header(expr.PayloadBaseNetworkHeader, f.destination, f.address), compare(expr.CmpOpEq, f.gateway.AsSlice()...)}
}

// whole matches a packet of a protocol that is no fragment. The kernel reads the ports of one that has none from its data.
// Of IPv6 it has no header between, either: those are the sandbox's to read.
func (f *family) whole(protocol byte) []expr.Any {
	if f == ip6 {
		return []expr.Any{header(expr.PayloadBaseNetworkHeader, 6, 1), compare(expr.CmpOpEq, protocol)}
	}
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

func (f *family) icmpType(t byte) []expr.Any {
	return append(protocol(f.icmp), header(expr.PayloadBaseTransportHeader, 0, 1), compare(expr.CmpOpEq, t))
}

func (f *family) icmpTypeAndCode(t, code byte) []expr.Any {
	return append(protocol(f.icmp), header(expr.PayloadBaseTransportHeader, 0, 2), compare(expr.CmpOpEq, t, code))
}

// icmpTypes matches those from first to last.
func (f *family) icmpTypes(first, last byte) []expr.Any {
	return append(protocol(f.icmp), header(expr.PayloadBaseTransportHeader, 0, 1),
		&expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: []byte{first}, ToData: []byte{last}})
}

// longer matches packets that carry more than so many bytes.
func (f *family) longer(than uint16) []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseNetworkHeader, f.length, 2), compare(expr.CmpOpGt, binaryutil.BigEndian.PutUint16(f.counted+than)...),
	}
}

// sizedNotIn looks the pair (TCP header length, IP length) up in s, in two
// registers that follow one another.
func (f *family) sizedNotIn(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, Len: 1, Mask: []byte{0xf0}, Xor: []byte{0}},
		&expr.Payload{DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseNetworkHeader, Offset: f.length, Len: 2},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.Name, SetID: s.ID, Invert: true},
	}
}

// ofSocket matches by the socket in P that a segment belongs to, if any, and ofErrorsSocket by that which sent what an ICMP
// error is about.
func ofSocket(key expr.SocketKey) []expr.Any                   { return socket(unix.IPPROTO_TCP, key) }
func (f *family) ofErrorsSocket(key expr.SocketKey) []expr.Any { return socket(f.icmp, key) }

func socket(of byte, key expr.SocketKey) []expr.Any {
	return append(protocol(of), &expr.Socket{Key: key, Register: reg}, compare(expr.CmpOpEq, 1))
}

// fromGateway makes the link's own address the source of an ICMP error of P's.
func (f *family) fromGateway() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: f.gateway.AsSlice()},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.address,
			CsumType: expr.CsumTypeInet, CsumOffset: f.sourceChecksum,
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

// reset refuses a connection.
func reset() []expr.Any { return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

func drop() []expr.Any         { return verdict(expr.VerdictDrop) }
func accept() []expr.Any       { return verdict(expr.VerdictAccept) }
func leave() []expr.Any        { return verdict(expr.VerdictReturn) }
func jump(c string) []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: c}} }
func goTo(c string) []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: c}} }

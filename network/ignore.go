package network

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf/asm"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Filter names traffic that is no use, both its directions. Each field that is set must fit.
type Filter struct {
	Protocol byte         // unix.IPPROTO_TCP or IPPROTO_UDP; 0 for both
	Port     uint16       // the workload's; 0 for all
	From     netip.Prefix // where the other side is; the zero value for everywhere
}

// fits says whether there is such traffic in a family.
func (i Filter) fits(f *family) bool {
	return !i.From.IsValid() || familyOf(i.From.Addr()) == f
}

// ignored are the rules by which packets are not counted. Fragments have no ports that could be told, and are.
func (f *familyRules) ignored(list []Filter) (rules []rule) {
	for n, i := range list {
		if !i.fits(f.family) {
			continue
		}
		protocols := []byte{i.Protocol}
		if i.Protocol == 0 {
			protocols = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
		}
		for _, p := range protocols {
			of := fmt.Sprintf("ignored, %d of %d", n+1, p)
			rules = append(rules,
				when(of+", in", notFrom(outerName), f.fitting(i, p, f.source, 2), leave()),
				when(of+", out", from(outerName), f.fitting(i, p, f.destination, 0), leave()))
		}
	}
	return rules
}

// fitting matches the other side's address and the workload's port, which are at these offsets in their headers.
func (f *familyRules) fitting(i Filter, p byte, address, port uint32) []expr.Any {
	out := protocol(p)
	if i.Port != 0 {
		out = append(f.whole(p), out...)
		out = append(out, header(expr.PayloadBaseTransportHeader, port, 2), compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(i.Port)...))
	}
	if i.From.IsValid() {
		out = append(out, f.within(address, i.From)...)
	}
	return out
}

// within matches an address of the header.
func (f *family) within(offset uint32, p netip.Prefix) []expr.Any {
	return []expr.Any{
		header(expr.PayloadBaseNetworkHeader, offset, f.address),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: f.address, Mask: maskOf(p), Xor: make([]byte, f.address)},
		compare(expr.CmpOpEq, p.Masked().Addr().AsSlice()...),
	}
}

func maskOf(p netip.Prefix) []byte { return net.CIDRMask(p.Bits(), p.Addr().BitLen()) }

// ignored is the same for the fast path: R9 says afterwards that the packet is no use. Offsets are those in the frame.
func (f *fastFamily) ignored(address, port int16) (out asm.Instructions) {
	for n, i := range f.spec.ignore {
		if !i.fits(f.family) {
			continue
		}
		next := f.label(fmt.Sprintf("not ignored by %d", n))
		if i.Protocol != 0 {
			out = append(out, asm.LoadMem(asm.R1, asm.R7, f.atProtocol(), asm.Byte), asm.JNE.Imm(asm.R1, int32(i.Protocol), next))
		}
		if i.Port != 0 {
			out = append(out, asm.LoadMem(asm.R1, asm.R7, port, asm.Half), asm.JNE.Imm(asm.R1, swapped(i.Port), next))
		}
		if i.From.IsValid() {
			out = append(out, within(address, i.From, next)...)
		}
		out = append(out, asm.Mov.Imm(asm.R9, 0), asm.Mov.Imm(asm.R1, 0).WithSymbol(next))
	}
	return out
}

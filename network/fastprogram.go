package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The two programs of the fast path read a frame at P's end of a wire before P's own stack does. What they know for
// certain to be the sandbox's, they move; all else goes P's way, to the rules of the gate. They know TCP and UDP over
// IPv4 and IPv6, unicast to the interface's own MAC, neither tagged, nor fragmented, nor with IP options or extension headers.
//
// R6 is the context, R7 the frame, R8 its end, R9 whether the packet is use (see ruleset.activity).

// Fields of the context, struct __sk_buff of linux/bpf.h.
const (
	skbLen, skbKind, skbProtocol, skbTagged = 0, 4, 16, 20
	skbIndex, skbData, skbDataEnd, skbGSO   = 40, 76, 80, 176
)

const (
	ethernetHeader = 14
	udpHeader      = 8

	toSlow   = "slow"
	slowPath = -1 // TCX_NEXT: on to whoever comes next, and then P's stack
	dropped  = 2  // TCX_DROP
	// Of struct bpf_sock.
	sockState, stateListen = 72, 10
)

// fastSpec is what the programs are made for.
type fastSpec struct {
	primary, outer   int // indexes in P
	switches, counts *ebpf.Map
	ignore           []Filter
	youth            time.Duration
	families         []*fastFamily
}

// fastFamily is the part of the programs for one of the families.
type fastFamily struct {
	*family
	spec         *fastSpec
	addresses    []netip.Prefix // the pod's, each by itself
	probes       []netip.Prefix
	hops, youngs *ebpf.Map
}

// Offsets in a frame whose IP header is the shortest.
func (f *family) atProtocol() int16    { return int16(ethernetHeader + f.protocol) }
func (f *family) atLength() int16      { return int16(ethernetHeader + f.length) }
func (f *family) atSource() int16      { return int16(ethernetHeader + f.source) }
func (f *family) atDestination() int16 { return int16(ethernetHeader + f.destination) }
func (f *family) at(transport int) int16 {
	return int16(ethernetHeader+int(f.header)) + int16(transport)
}

// label makes a name of the whole program's.
func (f *family) label(name string) string { return name + f.suffix }

// Bits of the switch, and offsets of the directions' counters: packets and bytes each, in cache lines of their own.
const (
	switchInward  uint32 = 1
	switchOutward uint32 = 2

	countsInward, countsOutward, countsSize = 0, 64, 128
)

// inward is for the pod's interface: to the sandbox's end of the link, past its backlog.
func (s *fastSpec) inward() asm.Instructions {
	return s.program(switchInward, func(f *fastFamily) asm.Instructions {
		return join(
			f.recognise(f.atDestination()),
			f.outside(f.atSource(), f.nowhere),
			f.transport(f.notOfSocket()),
			f.young(f.atSource(), f.at(0), true),
			f.ignored(f.atSource(), f.at(2)),
			f.count(countsInward),
			asm.Instructions{asm.Mov.Imm(asm.R1, int32(s.outer)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return()},
		)
	})
}

// outward is for hib0: to the next hop. Only answers to [Dial] are for sockets of P.
func (s *fastSpec) outward() asm.Instructions {
	return s.program(switchOutward, func(f *fastFamily) asm.Instructions {
		outOfRange := f.label("no proxy's port")
		toProxy := asm.Instructions{
			asm.LoadMem(asm.R1, asm.R7, f.at(2), asm.Half),
			asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.JLT.Imm(asm.R1, ProxyPortLow, outOfRange),
			asm.JGT.Imm(asm.R1, ProxyPortHigh, outOfRange),
		}
		after := asm.Instructions{asm.Mov.Imm(asm.R9, 0).WithSymbol(outOfRange)}
		return join(
			f.recognise(f.atSource()),
			f.transport(join(toProxy, f.notOfSocket(), after)),
			f.young(f.atDestination(), f.at(2), false),
			f.ignored(f.atDestination(), f.at(0)),
			f.toNextHop(),
		)
	})
}

// program has each family's part begin with the frame's beginning and end in R7 and R8.
func (s *fastSpec) program(bit uint32, of func(*fastFamily) asm.Instructions) asm.Instructions {
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R1, s.switches.FD(), 0),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word),
		asm.And.Imm32(asm.R1, int32(bit)),
		asm.JEq.Imm(asm.R1, 0, toSlow),
		asm.LoadMem(asm.R1, asm.R6, skbKind, asm.Word),
		asm.JNE.Imm(asm.R1, unix.PACKET_HOST, toSlow),
		asm.LoadMem(asm.R1, asm.R6, skbTagged, asm.Word),
		asm.JNE.Imm(asm.R1, 0, toSlow),
		asm.LoadMem(asm.R7, asm.R6, skbData, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, skbDataEnd, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, skbProtocol, asm.Word),
	}
	for _, f := range s.families {
		out = append(out, asm.JEq.Imm(asm.R1, swapped(f.ether), f.name))
	}
	out = append(out, asm.Ja.Label(toSlow))
	for _, f := range s.families {
		part := of(f)
		part[0] = part[0].WithSymbol(f.name)
		out = append(out, part...)
	}
	return append(out, asm.Mov.Imm(asm.R0, slowPath).WithSymbol(toSlow), asm.Return())
}

// recognise lets only those pass that the programs know, with one of the pod's addresses at offset.
func (f *fastFamily) recognise(offset int16) asm.Instructions {
	out := asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, int32(f.at(udpHeader))),
		asm.JGT.Reg(asm.R1, asm.R8, toSlow),
		asm.LoadMem(asm.R1, asm.R7, ethernetHeader, asm.Byte),
	}
	if f.family == ip6 { // what follows the header has to be TCP or UDP, and so is neither a fragment nor options
		out = append(out, asm.And.Imm32(asm.R1, 0xf0), asm.JNE.Imm(asm.R1, 6<<4, toSlow))
	} else {
		out = append(out,
			asm.JNE.Imm(asm.R1, 4<<4|ipv4Header/4, toSlow),
			asm.LoadMem(asm.R1, asm.R7, ethernetHeader+6, asm.Half),
			asm.And.Imm32(asm.R1, swapped(0x3fff)), // more fragments, or an offset
			asm.JNE.Imm(asm.R1, 0, toSlow))
	}
	return join(out, f.among(offset, f.addresses, "of the pod", toSlow), asm.Instructions{asm.Mov.Imm(asm.R9, 0)})
}

// among goes on where the address at offset is in one of the networks, and else to a label. The name is for labels of its own.
func (f *fastFamily) among(offset int16, list []netip.Prefix, name, otherwise string) (out asm.Instructions) {
	found := f.label(name)
	for n, p := range list {
		next := fmt.Sprintf("%s, not %d", found, n)
		out = append(out, within(offset, p, next)...)
		out = append(out, asm.Ja.Label(found), asm.Mov.Imm(asm.R1, 0).WithSymbol(next))
	}
	return append(out, asm.Ja.Label(otherwise), asm.Mov.Imm(asm.R1, 0).WithSymbol(found))
}

// outside leaves to P what has an address of one of the networks at offset.
func (f *fastFamily) outside(offset int16, list []netip.Prefix) (out asm.Instructions) {
	for _, p := range list {
		next := f.label("not of " + p.String())
		out = append(out, within(offset, p, next)...)
		out = append(out, asm.Ja.Label(toSlow), asm.Mov.Imm(asm.R1, 0).WithSymbol(next))
	}
	return out
}

// within goes on where the address at offset is in a network, and else to a label.
func within(offset int16, p netip.Prefix, otherwise string) (out asm.Instructions) {
	mask, network := maskOf(p), p.Masked().Addr().AsSlice()
	for i := 0; i < len(mask); i += 4 {
		m := word(mask[i:])
		if m == 0 && i > 0 {
			break
		}
		out = append(out, asm.LoadMem(asm.R1, asm.R7, offset+int16(i), asm.Word))
		if m != -1 {
			out = append(out, asm.And.Imm32(asm.R1, m))
		}
		out = append(out, asm.JNE.Imm32(asm.R1, word(network[i:]), otherwise))
	}
	return out
}

// transport sets R9 as ruleset.activity counts. Segments have to pass check.
func (f *fastFamily) transport(check asm.Instructions) asm.Instructions {
	use, judged := f.label("use"), f.label("judged")
	out := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, f.atProtocol(), asm.Byte),
		asm.JEq.Imm(asm.R1, unix.IPPROTO_UDP, use),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, toSlow),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, int32(f.at(shortestTCP))),
		asm.JGT.Reg(asm.R1, asm.R8, toSlow),
	}
	out = append(out, check...)
	return append(out,
		asm.LoadMem(asm.R1, asm.R7, f.at(13), asm.Byte),
		asm.And.Imm32(asm.R1, fin|syn|psh),
		asm.JNE.Imm(asm.R1, 0, use),
		asm.LoadMem(asm.R2, asm.R7, f.at(12), asm.Byte),
		asm.RSh.Imm32(asm.R2, 4),
		asm.LSh.Imm32(asm.R2, 2),
		asm.JLT.Imm(asm.R2, shortestTCP, use),
		asm.LoadMem(asm.R1, asm.R7, f.atLength(), asm.Half),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.Sub.Imm32(asm.R1, int32(f.counted)),
		asm.Sub.Reg32(asm.R1, asm.R2),
		asm.Mov.Imm(asm.R9, 0),
		asm.JLE.Imm32(asm.R1, 1, judged), // the payload; a length that can't be is larger
		asm.Mov.Imm(asm.R9, 1).WithSymbol(use),
		asm.Mov.Reg(asm.R1, asm.R9).WithSymbol(judged),
	)
}

// notOfSocket leaves segments of P's own connections to P: those that it held, and those of the proxy. Its listeners
// are passed over. The addresses and ports that follow one another in the packet are what the helper asks for.
func (f *fastFamily) notOfSocket() asm.Instructions {
	none := f.label("no socket")
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, int32(f.atSource())),
		asm.Mov.Imm(asm.R3, int32(2*f.address+4)),
		asm.Mov.Imm(asm.R4, -1), // this namespace
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkcLookupTcp.Call(),
		asm.JEq.Imm(asm.R0, 0, none),
		asm.LoadMem(asm.R9, asm.R0, sockState, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.FnSkRelease.Call(),
		asm.JNE.Imm(asm.R9, stateListen, toSlow),
		asm.Mov.Imm(asm.R9, 0).WithSymbol(none),
	}
}

// count comes last: what goes the slow way after all is counted there. Bytes are those of the IP packet.
func (f *fastFamily) count(direction uint32) asm.Instructions {
	skip := f.label("counted")
	return asm.Instructions{
		asm.JEq.Imm(asm.R9, 0, skip),
		asm.LoadMapValue(asm.R1, f.spec.counts.FD(), direction),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, skbLen, asm.Word),
		asm.Sub.Imm(asm.R2, ethernetHeader),
		asm.Add.Imm(asm.R1, 8),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R9, 0).WithSymbol(skip),
	}
}

// mute is for the sandbox's end, whose packet socket has had the frame by then: I's kernel never sees it.
func mute() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, dropped), asm.Return()}
}

func join(parts ...asm.Instructions) (out asm.Instructions) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// swapped is a number of the wire's order as the machine loads it.
func swapped(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// word is the first four bytes as the machine loads them.
func word(b []byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }

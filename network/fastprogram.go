package network

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The two programs of the fast path read a frame at P's end of a wire before P's own stack does. What they know for
// certain to be the sandbox's, they move; all else goes P's way, to the rules of the gate. They know TCP and UDP over
// IPv4, unicast to the interface's own MAC, neither tagged, nor fragmented, nor with IP options.
//
// R6 is the context, R7 the frame, R8 its end, R9 whether the packet is use (see ruleset.activity).

// Fields of the context, struct __sk_buff of linux/bpf.h.
const (
	skbLen, skbKind, skbProtocol, skbTagged = 0, 4, 16, 20
	skbIndex, skbData, skbDataEnd, skbGSO   = 40, 76, 80, 176
)

// Offsets in an Ethernet frame with an IPv4 header of 20 bytes.
const (
	ethernetHeader = 14
	atLength       = ethernetHeader + 2
	atFragment     = ethernetHeader + 6
	atProtocol     = ethernetHeader + 9
	atSource       = ethernetHeader + sourceOffset
	atDestination  = ethernetHeader + destinationOffset
	atTransport    = ethernetHeader + ipv4Header
	endUDP         = atTransport + 8
	endTCP         = atTransport + shortestTCP
)

const (
	toSlow   = "slow"
	slowPath = -1 // TCX_NEXT: on to whoever comes next, and then P's stack
	dropped  = 2  // TCX_DROP
	// Of struct bpf_sock.
	sockState, stateListen = 72, 10
)

// fastSpec is what the programs are made for.
type fastSpec struct {
	addresses              []netip.Addr
	primary, outer         int // indexes in P
	switches, counts, hops *ebpf.Map
	youngs                 *ebpf.Map
	ignore                 []Filter
	probes                 []netip.Prefix
	youth                  time.Duration
}

// Bits of the switch, and offsets of the directions' counters: packets and bytes each, in cache lines of their own.
const (
	switchInward  uint32 = 1
	switchOutward uint32 = 2

	countsInward, countsOutward, countsSize = 0, 64, 128
)

// inward is for the pod's interface: to the sandbox's end of the link, past its backlog.
func (s *fastSpec) inward() asm.Instructions {
	return join(
		s.recognise(switchInward, atDestination),
		transport(notOfSocket()),
		s.young(atSource, atTransport, true),
		s.ignored(atSource, atTransport+2),
		s.count("counted", countsInward),
		asm.Instructions{asm.Mov.Imm(asm.R1, int32(s.outer)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return()},
		slow(),
	)
}

// outward is for hib0: to the next hop. Only answers to [Dial] are for sockets of P.
func (s *fastSpec) outward() asm.Instructions {
	const outOfRange = "no proxy's port"
	toProxy := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, atTransport+2, asm.Half),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.JLT.Imm(asm.R1, ProxyPortLow, outOfRange),
		asm.JGT.Imm(asm.R1, ProxyPortHigh, outOfRange),
	}
	after := asm.Instructions{asm.Mov.Imm(asm.R9, 0).WithSymbol(outOfRange)}
	return join(
		s.recognise(switchOutward, atSource),
		transport(join(toProxy, notOfSocket(), after)),
		s.young(atDestination, atTransport+2, false),
		s.ignored(atDestination, atTransport),
		s.toNextHop(),
		slow(),
	)
}

// recognise lets only those pass that the programs know, with one of the pod's addresses at offset.
func (s *fastSpec) recognise(bit uint32, offset int16) asm.Instructions {
	const ours = "of the pod"
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
		asm.LoadMem(asm.R1, asm.R6, skbProtocol, asm.Word),
		asm.JNE.Imm(asm.R1, swapped(unix.ETH_P_IP), toSlow),
		asm.LoadMem(asm.R7, asm.R6, skbData, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, skbDataEnd, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, endUDP),
		asm.JGT.Reg(asm.R1, asm.R8, toSlow),
		asm.LoadMem(asm.R1, asm.R7, ethernetHeader, asm.Byte),
		asm.JNE.Imm(asm.R1, 4<<4|ipv4Header/4, toSlow),
		asm.LoadMem(asm.R1, asm.R7, atFragment, asm.Half),
		asm.And.Imm32(asm.R1, swapped(0x3fff)), // more fragments, or an offset
		asm.JNE.Imm(asm.R1, 0, toSlow),
		asm.LoadMem(asm.R1, asm.R7, offset, asm.Word),
	}
	for _, a := range s.addresses {
		out = append(out, asm.JEq.Imm32(asm.R1, address32(a), ours))
	}
	return append(out, asm.Ja.Label(toSlow), asm.Mov.Imm(asm.R9, 0).WithSymbol(ours))
}

// transport sets R9 as ruleset.activity counts. Segments have to pass check.
func transport(check asm.Instructions) asm.Instructions {
	const use, judged = "use", "judged"
	out := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, atProtocol, asm.Byte),
		asm.JEq.Imm(asm.R1, unix.IPPROTO_UDP, use),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, toSlow),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, endTCP),
		asm.JGT.Reg(asm.R1, asm.R8, toSlow),
	}
	out = append(out, check...)
	return append(out,
		asm.LoadMem(asm.R1, asm.R7, atTransport+13, asm.Byte),
		asm.And.Imm32(asm.R1, fin|syn|psh),
		asm.JNE.Imm(asm.R1, 0, use),
		asm.LoadMem(asm.R2, asm.R7, atTransport+12, asm.Byte),
		asm.RSh.Imm32(asm.R2, 4),
		asm.LSh.Imm32(asm.R2, 2),
		asm.JLT.Imm(asm.R2, shortestTCP, use),
		asm.LoadMem(asm.R1, asm.R7, atLength, asm.Half),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.Sub.Imm32(asm.R1, ipv4Header),
		asm.Sub.Reg32(asm.R1, asm.R2),
		asm.Mov.Imm(asm.R9, 0),
		asm.JLE.Imm32(asm.R1, 1, judged), // the payload; a length that can't be is larger
		asm.Mov.Imm(asm.R9, 1).WithSymbol(use),
		asm.Mov.Reg(asm.R1, asm.R9).WithSymbol(judged),
	)
}

// notOfSocket leaves segments of P's own connections to P: those that it held, and those of the proxy. Its listeners
// are passed over. The addresses and ports that follow one another in the packet are what the helper asks for.
func notOfSocket() asm.Instructions {
	const none = "no socket"
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, atSource),
		asm.Mov.Imm(asm.R3, 12),
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
func (s *fastSpec) count(skip string, direction uint32) asm.Instructions {
	return asm.Instructions{
		asm.JEq.Imm(asm.R9, 0, skip),
		asm.LoadMapValue(asm.R1, s.counts.FD(), direction),
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

func slow() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, slowPath).WithSymbol(toSlow), asm.Return()}
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

func address32(a netip.Addr) int32 {
	b := a.As4()
	return int32(binary.NativeEndian.Uint32(b[:]))
}

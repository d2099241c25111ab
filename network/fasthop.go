package network

import (
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// How long a next hop is used before the kernel is asked again. It is the kernel that looks after its neighbours: the
// packet which asks goes its way, and so has it probe one that was silent.
const hopAge = time.Second

// struct bpf_fib_lookup of linux/bpf.h, and where it lies on the stack.
const (
	fibSize, fibIndex, fibSource, fibDestination, fibOwnMAC, fibNextMAC = 64, 8, 16, 32, 52, 58

	onStackNow = -8
	onStackKey = -12
	onStackHop = onStackKey - 4 - hopSize
	onStackFIB = onStackHop - fibSize
	hopSize    = 24 // until when, the frame's first twelve bytes, four of nothing
	hopMACs    = 8
	hopKeySize = 4
	hopsAtMost = 256
)

// toNextHop sends the frame out of the pod's interface. For whom it is was asked within the last second, or is asked now:
// whatever P would not simply forward there, goes the slow way.
func (s *fastSpec) toNextHop() asm.Instructions {
	const ask = "ask"
	return join(
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.R7, atDestination, asm.Word),
			asm.StoreMem(asm.RFP, onStackKey, asm.R1, asm.Word),
			asm.FnKtimeGetCoarseNs.Call(),
			asm.StoreMem(asm.RFP, onStackNow, asm.R0, asm.DWord),
			asm.LoadMapPtr(asm.R1, s.hops.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, onStackKey),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, ask),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, onStackNow, asm.DWord),
			asm.JGE.Reg(asm.R2, asm.R1, ask),
		},
		copyWords(asm.R7, 0, asm.R0, hopMACs, 3),
		s.count("counted", countsOutward),
		asm.Instructions{asm.Mov.Imm(asm.R1, int32(s.primary)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()},
		s.askKernel(ask),
		s.count("counted, too", countsOutward),
		asm.Instructions{
			asm.Mov.Imm(asm.R1, int32(s.primary)), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, 0),
			asm.FnRedirectNeigh.Call(), asm.Return(),
		},
	)
}

func (s *fastSpec) askKernel(label string) asm.Instructions {
	out := asm.Instructions{asm.Mov.Imm(asm.R1, 0).WithSymbol(label)}
	for at := onStackFIB; at < onStackFIB+fibSize; at += 8 {
		out = append(out, asm.StoreMem(asm.RFP, int16(at), asm.R1, asm.DWord))
	}
	out = append(out,
		asm.StoreImm(asm.RFP, onStackFIB, unix.AF_INET, asm.Byte),
		asm.LoadMem(asm.R1, asm.R7, atProtocol, asm.Byte),
		asm.StoreMem(asm.RFP, onStackFIB+1, asm.R1, asm.Byte),
		asm.LoadMem(asm.R1, asm.R6, skbIndex, asm.Word),
		asm.StoreMem(asm.RFP, onStackFIB+fibIndex, asm.R1, asm.Word),
	)
	out = append(out, copyWords(asm.RFP, onStackFIB+fibSource, asm.R7, atSource, 1)...)
	out = append(out, copyWords(asm.RFP, onStackFIB+fibDestination, asm.R7, atDestination, 1)...)
	out = append(out,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, onStackFIB),
		asm.Mov.Imm(asm.R3, fibSize),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnFibLookup.Call(),
		asm.JNE.Imm(asm.R0, 0, toSlow),
		asm.LoadMem(asm.R1, asm.RFP, onStackFIB+fibIndex, asm.Word),
		asm.JNE.Imm(asm.R1, int32(s.primary), toSlow),
	)
	return append(out, s.remember()...)
}

// remember keeps the answer. That there is no room for it would do no harm.
func (s *fastSpec) remember() asm.Instructions {
	out := asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, onStackNow, asm.DWord),
		asm.Add.Imm(asm.R1, int32(hopAge)),
		asm.StoreMem(asm.RFP, onStackHop, asm.R1, asm.DWord),
		asm.StoreImm(asm.RFP, onStackHop+hopMACs+12, 0, asm.Word),
	}
	for i := range int16(3) {
		out = append(out, copyHalf(onStackHop+hopMACs+2*i, onStackFIB+fibNextMAC+2*i)...)
		out = append(out, copyHalf(onStackHop+hopMACs+6+2*i, onStackFIB+fibOwnMAC+2*i)...)
	}
	return append(out,
		asm.LoadMapPtr(asm.R1, s.hops.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, onStackKey),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, onStackHop),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
}

func copyWords(to asm.Register, at int16, from asm.Register, offset, n int16) (out asm.Instructions) {
	for i := range n {
		out = append(out, asm.LoadMem(asm.R1, from, offset+4*i, asm.Word), asm.StoreMem(to, at+4*i, asm.R1, asm.Word))
	}
	return out
}

func copyHalf(to, from int16) asm.Instructions {
	return asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, from, asm.Half), asm.StoreMem(asm.RFP, to, asm.R1, asm.Half)}
}

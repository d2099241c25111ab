package network

import (
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// How long a next hop is used before the kernel is asked again. The packet that asks goes P's way, so it is the kernel
// that looks after its neighbours, and has one probed that was silent.
const hopAge = time.Second

// A hop is until when it may be used, the first twelve bytes of a frame to it, and the longest IP packet that it takes. It is
// known by source and destination, as they follow one another in the packet: P may route by both.
const (
	hopSize               = 24
	hopMACs, hopMTU       = 8, 20
	hopsAtMost            = 256
	fibSize               = 64 // struct bpf_fib_lookup of linux/bpf.h
	fibLength, fibIndex   = 6, 8
	fibFrom, fibTo        = 16, 32
	fibOwnMAC, fibNextMAC = 52, 58
	fibTooLong            = 8 // BPF_FIB_LKUP_RET_FRAG_NEEDED

	stackNow = -8
	stackHop = stackNow - hopSize
	stackFIB = stackHop - fibSize
	stackKey = stackFIB - 2*16 // as long as the longer family's
)

func (f *family) hopKeySize() uint32 { return 2 * f.address }

// toNextHop sends the frame out of the pod's interface. To whom, is known of the last second; a packet for which it isn't
// asks, and goes the slow way. So does what P would not simply forward there.
func (f *fastFamily) toNextHop() asm.Instructions {
	ask := f.label("ask")
	return join(
		copyWords(asm.RFP, stackKey, asm.R7, f.atSource(), int16(f.hopKeySize()/4)),
		asm.Instructions{
			asm.FnKtimeGetCoarseNs.Call(),
			asm.StoreMem(asm.RFP, stackNow, asm.R0, asm.DWord),
			asm.LoadMapPtr(asm.R1, f.hops.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, stackKey),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, ask),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, stackNow, asm.DWord),
			asm.JGE.Reg(asm.R2, asm.R1, ask),
		},
		f.fits(),
		copyWords(asm.R7, 0, asm.R0, hopMACs, 3),
		f.count(countsOutward),
		asm.Instructions{asm.Mov.Imm(asm.R1, int32(f.spec.primary)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()},
		f.askKernel(ask),
		asm.Instructions{asm.Ja.Label(toSlow)},
	)
}

// fits keeps what is longer than the hop at R0 takes for the kernel, which says so to the sandbox.
func (f *fastFamily) fits() asm.Instructions {
	single, ok := f.label("one packet"), f.label("fits")
	return asm.Instructions{
		asm.LoadMem(asm.R3, asm.R0, hopMTU, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, skbGSO, asm.Word),
		asm.JEq.Imm(asm.R1, 0, single),
		asm.LoadMem(asm.R2, asm.R7, f.atProtocol(), asm.Byte),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, toSlow),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, int32(f.at(shortestTCP))),
		asm.JGT.Reg(asm.R2, asm.R8, toSlow),
		asm.LoadMem(asm.R2, asm.R7, f.at(12), asm.Byte),
		asm.RSh.Imm32(asm.R2, 4),
		asm.LSh.Imm32(asm.R2, 2),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.Add.Imm(asm.R1, int32(f.header)),
		asm.JGT.Reg(asm.R1, asm.R3, toSlow),
		asm.Ja.Label(ok),
		asm.LoadMem(asm.R1, asm.R6, skbLen, asm.Word).WithSymbol(single),
		asm.Sub.Imm(asm.R1, ethernetHeader),
		asm.JGT.Reg(asm.R1, asm.R3, toSlow),
		asm.Mov.Reg(asm.R1, asm.R3).WithSymbol(ok),
	}
}

// askKernel asks twice: with a packet that no route takes for the longest which it takes, and then for the hop. Not for
// addresses of nobody, groups and all: routes would take them, the kernel does so only with some.
func (f *fastFamily) askKernel(label string) asm.Instructions {
	return join(
		asm.Instructions{asm.Mov.Imm(asm.R1, 0).WithSymbol(label)},
		f.outside(f.atDestination(), f.nowhere),
		f.lookUp(0xffff),
		asm.Instructions{
			asm.JNE.Imm(asm.R0, fibTooLong, toSlow),
			asm.LoadMem(asm.R1, asm.RFP, stackFIB+fibLength, asm.Half),
			asm.StoreMem(asm.RFP, stackHop+hopMTU, asm.R1, asm.Word),
		},
		f.lookUp(0),
		asm.Instructions{
			asm.JNE.Imm(asm.R0, 0, toSlow),
			asm.LoadMem(asm.R1, asm.RFP, stackFIB+fibIndex, asm.Word),
			asm.JNE.Imm(asm.R1, int32(f.spec.primary), toSlow),
		},
		f.remember(),
	)
}

// lookUp leaves the answer in R0 and on the stack.
func (f *fastFamily) lookUp(length int64) asm.Instructions {
	out := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for at := int16(stackFIB); at < stackFIB+fibSize; at += 8 {
		out = append(out, asm.StoreMem(asm.RFP, at, asm.R1, asm.DWord))
	}
	return join(out,
		asm.Instructions{
			asm.StoreImm(asm.RFP, stackFIB, int64(f.sockets), asm.Byte),
			asm.StoreImm(asm.RFP, stackFIB+fibLength, length, asm.Half),
			asm.LoadMem(asm.R1, asm.R7, f.atProtocol(), asm.Byte),
			asm.StoreMem(asm.RFP, stackFIB+1, asm.R1, asm.Byte),
			asm.LoadMem(asm.R1, asm.R6, skbIndex, asm.Word),
			asm.StoreMem(asm.RFP, stackFIB+fibIndex, asm.R1, asm.Word),
		},
		copyWords(asm.RFP, stackFIB+fibFrom, asm.R7, f.atSource(), int16(f.address/4)),
		copyWords(asm.RFP, stackFIB+fibTo, asm.R7, f.atDestination(), int16(f.address/4)),
		asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, stackFIB),
			asm.Mov.Imm(asm.R3, fibSize),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnFibLookup.Call(),
		},
	)
}

// remember keeps the answer. That there is no room for it would do no harm.
func (f *fastFamily) remember() asm.Instructions {
	out := asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, stackNow, asm.DWord),
		asm.Add.Imm(asm.R1, int32(hopAge)),
		asm.StoreMem(asm.RFP, stackHop, asm.R1, asm.DWord),
	}
	for i := int16(0); i < 6; i += 2 {
		out = append(out, copyHalf(stackHop+hopMACs+i, stackFIB+fibNextMAC+i)...)
		out = append(out, copyHalf(stackHop+hopMACs+6+i, stackFIB+fibOwnMAC+i)...)
	}
	return append(out,
		asm.LoadMapPtr(asm.R1, f.hops.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stackHop),
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

package main

import (
	"syscall"
	"unsafe"
)

// sigaction is the kernel's struct; zero but for the handler.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	sigIgn    = 1
	signals   = 64
	maskBytes = 8
)

// hold ignores all that can be ignored and sleeps until it is killed. It does
// so without os/signal, whose goroutine and thread would double its memory. A
// plain system call (not a raw one) tells Go's scheduler that the thread is
// away, so that nothing of the runtime wakes up again.
func hold() {
	ignore := sigaction{handler: sigIgn}
	for s := uintptr(1); s <= signals; s++ {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&ignore)), 0, maskBytes, 0, 0)
	}
	for {
		// A poll of nothing without a timeout: pause, on every architecture.
		_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

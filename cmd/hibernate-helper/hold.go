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

// nowhere is a directory in which nothing can be made, and nothing of the
// host's is found.
const nowhere = "/proc/self/fdinfo"

// ready is the descriptor on which hold says that it is settled.
const ready = 3

// hold leaves the host's files: who looks for the container's by
// /proc/PID/root, as "nerdctl cp" does, must not read or write the host's
// instead. It says so with a byte on the descriptor ready, and closes that.
// Then it ignores all that can be ignored and sleeps until it is killed. It does
// so without os/signal, whose goroutine and thread would double its memory. A
// plain system call (not a raw one) tells Go's scheduler that the thread is
// away, so that nothing of the runtime wakes up again.
func hold() {
	ignore := sigaction{handler: sigIgn}
	for s := uintptr(1); s <= signals; s++ {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&ignore)), 0, maskBytes, 0, 0)
	}
	settle()
	for {
		// A poll of nothing without a timeout: pause, on every architecture.
		_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

func settle() {
	if err := syscall.Chroot(nowhere); err != nil {
		fail("leave the host's files: " + err.Error())
	}
	if err := syscall.Chdir("/"); err != nil {
		fail("leave the host's files: " + err.Error())
	}
	if _, err := syscall.Write(ready, []byte{'.'}); err != nil {
		fail("say that it is settled: " + err.Error())
	}
	_ = syscall.Close(ready)
}

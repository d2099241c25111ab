package main

import (
	"syscall"
	"unsafe"
)

// connected is what dial writes before anything else once it is connected.
const connected = '+'

// dial connects to a port of the sandbox's loopback, of family "4" or "6", says
// so on the socket that is its standard input and output, and passes bytes both
// ways until both sides have ended. The end of one side's stream is passed on,
// and the other goes on. It ends at once when the socket's other end is gone, and
// with status 1 when nothing listens or a side breaks.
func dial(family, port string) string {
	n, ok := decimal(port)
	if !ok {
		return "not a port: " + port
	}
	server, err := connect(family, n)
	if err != nil {
		return "connect to port " + port + ": " + err.Error()
	}
	if err := writeAll(1, []byte{connected}); err != "" {
		return err
	}
	done := make(chan struct{})
	go func() {
		pass(server, 0)
		close(done)
		awaitHangup(0)
		syscall.Exit(0)
	}()
	pass(1, server)
	<-done
	return ""
}

func connect(family string, port int) (fd int, err error) {
	domain, to := syscall.AF_INET, syscall.Sockaddr(&syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if family == "6" {
		domain, to = syscall.AF_INET6, &syscall.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
	}
	if fd, err = syscall.Socket(domain, syscall.SOCK_STREAM, 0); err != nil {
		return -1, err
	}
	for {
		if err = syscall.Connect(fd, to); err != syscall.EINTR {
			return fd, err
		}
	}
}

// pass copies from one descriptor to another until the end of the stream, and
// passes that on. A side that breaks ends the program, and with it both.
func pass(to, from int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(from, buf)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			fail("read: " + err.Error())
		case n == 0:
			_ = syscall.Shutdown(to, syscall.SHUT_WR) // fails when that side is gone: its reader finds out
			return
		}
		if err := writeAll(to, buf[:n]); err != "" {
			fail(err)
		}
	}
}

// pollfd is the kernel's struct.
type pollfd struct {
	fd              int32
	events, revents int16
}

// awaitHangup returns when both ways of a unix socket have ended, or its other
// end is gone. A server that ignores its client's end is not waited for then.
func awaitHangup(fd int32) {
	for {
		p := pollfd{fd: fd}
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, 0, 0, 0, 0)
		if n > 0 || errno != syscall.EINTR {
			return
		}
	}
}

// decimal reads a port's number.
func decimal(text string) (n int, ok bool) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' || n > 65535 {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, n > 0 && n <= 65535
}

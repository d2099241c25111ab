package network_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// TestBacklogIsBounded: what clients send ahead waits at their side beyond the bound, and nothing of it is lost; clients beyond
// the bound get no answer yet.
func TestBacklogIsBounded(t *testing.T) {
	const buffer, sent = 16 << 10, 4 << 20
	w := newWorld(t)
	l := w.open(t)
	f, err := l.Listen(t.Context(), echoPort, network.Backlog{Connections: 3, Buffer: buffer})
	must(t, err)
	defer f.Close()
	must(t, l.SetGate(t.Context(), held(echoPort)))
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, c.(*net.TCPConn).SetWriteBuffer(buffer))
	must(t, c.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
	ahead, err := c.Write(make([]byte, sent))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes were taken: %v", ahead, err)
	}
	if ahead > 5*buffer { // its own buffer is doubled by the kernel, as ours
		t.Errorf("%d bytes were taken, of a connection that has %d", ahead, buffer)
	}

	waiting := 1
	for range 10 {
		late, err := w.dial(echoPort, 500*time.Millisecond)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			break
		}
		must(t, err)
		defer late.Close()
		waiting++
	}
	if waiting != 4 { // the kernel takes one more than it was told
		t.Errorf("%d wait", waiting)
	}

	ln, err := net.FileListener(f)
	must(t, err)
	defer ln.Close()
	in, err := ln.Accept()
	must(t, err)
	defer in.Close()
	rest := make(chan error, 1)
	go func() {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, err := c.Write(make([]byte, sent-ahead))
		rest <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	must(t, in.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := io.Copy(struct{ io.Writer }{io.Discard}, in)
	if n != sent || err != nil {
		t.Errorf("%d of %d bytes arrive: %v", n, sent, err)
	}
	must(t, <-rest)
	raw, err := in.(*net.TCPConn).SyscallConn()
	must(t, err)
	var lock, size int
	must(t, raw.Control(func(fd uintptr) {
		lock, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, 72) // SO_BUF_LOCK
		size, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF)
	}))
	if lock != 0 {
		t.Error("its window can't grow: the buffer's size is locked")
	}
	t.Logf("%d bytes ahead, then a buffer of %d", ahead, size)
}

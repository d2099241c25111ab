package wakeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var sockaddrMapped = unix.SockaddrInet6{Port: 80, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}}

func TestHalfCloseOfTheClient(t *testing.T) {
	r := newRig(t, func(c *net.TCPConn) {
		got, err := readAll(c)
		fmt.Fprintf(c, "%s %v", got, err)
	})
	r.start()
	c := r.dial()
	io.WriteString(c, "request")
	c.CloseWrite()
	if got, err := readAll(c); got != "request <nil>" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestHalfCloseOfTheServer(t *testing.T) {
	result := make(chan string, 1)
	r := newRig(t, func(c *net.TCPConn) {
		io.WriteString(c, "that is all")
		c.CloseWrite()
		got, err := readAll(c)
		result <- fmt.Sprint(got, err)
	})
	r.start()
	c := r.dial()
	if got, err := readAll(c); got != "that is all" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	for range 3 {
		io.WriteString(c, "more")
	}
	c.CloseWrite()
	if got := <-result; got != "moremoremore<nil>" {
		t.Errorf("the server got %q", got)
	}
}

// reset ends a connection with RST.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

func TestResetOfTheClientReachesTheServer(t *testing.T) {
	for name, before := range map[string]func(c *net.TCPConn){
		"open":        func(*net.TCPConn) {},
		"half-closed": func(c *net.TCPConn) { c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			r := newRig(t, func(c *net.TCPConn) {
				io.WriteString(c, "hello")
				_, err := readAll(c)
				if err == nil { // the client's end has come; now its reset
					err = waitForError(c)
				}
				result <- err
			})
			r.start()
			c := r.dial()
			io.ReadFull(c, make([]byte, 5))
			before(c)
			reset(c)
			if err := <-result; !isReset(err) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("the server got %v", err)
			}
			until(t, "the end", func() bool { return len(r.observer.ends()) == 1 })
			if d := r.observer.ends()[0]; d.Err == nil {
				t.Error("the reset was not told")
			}
		})
	}
}

// waitForError waits for a reset after the end of the stream, without sending.
func waitForError(c *net.TCPConn) (err error) {
	raw, _ := c.SyscallConn()
	for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
		raw.Control(func(fd uintptr) {
			if e, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); e != 0 {
				err = syscall.Errno(e)
			}
		})
		time.Sleep(time.Millisecond)
	}
	return err
}

func TestResetOfTheServerReachesTheClientAfterItsData(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 4<<20)
	for name, size := range map[string]int{"nothing": 0, "a line": 10, "much": len(big)} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan int, 1)
			r := newRig(t, func(c *net.TCPConn) {
				c.SetWriteBuffer(8 << 20)
				c.Read(make([]byte, 1)) // the client is there
				n, _ := c.Write(big[:size])
				until(t, "all to be sent", func() bool { return queued(c) == 0 })
				reset(c)
				sent <- n
			})
			r.start()
			c := r.dial()
			io.WriteString(c, "x")
			got, err := readAll(c)
			if want := <-sent; len(got) != want || !isReset(err) {
				t.Errorf("the client got %d bytes of %d, %v", len(got), want, err)
			}
		})
	}
}

// queued returns how many bytes are not acknowledged.
func queued(c *net.TCPConn) (n int) {
	raw, _ := c.SyscallConn()
	raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}

// A server that answers and closes without having read everything makes its
// kernel send RST after the answer.
func TestAnswerOfAServerThatDoesNotReadAll(t *testing.T) {
	r := newRig(t, func(c *net.TCPConn) {
		c.Read(make([]byte, 10))
		io.WriteString(c, "413 too large")
		until(t, "the answer to be sent", func() bool { return queued(c) == 0 })
	})
	r.start()
	for range 30 {
		c := r.dial()
		var wg sync.WaitGroup
		wg.Go(func() { c.Write(make([]byte, 16<<20)) })
		if got, _ := readAll(c); got != "413 too large" {
			t.Fatalf("the client got %q", got)
		}
		wg.Wait()
	}
}

func TestLongStreamsBothWays(t *testing.T) {
	const size = 64 << 20
	r := newRig(t, echo)
	r.start()
	c := r.dial()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	var wg sync.WaitGroup
	wg.Go(func() {
		block := make([]byte, 1<<16)
		for n := range size / len(block) {
			block[0] = byte(n)
			if _, err := c.Write(block); err != nil {
				t.Error(err)
				return
			}
		}
		c.CloseWrite()
	})
	block := make([]byte, 1<<16)
	for n := range size / len(block) {
		if _, err := io.ReadFull(c, block); err != nil || block[0] != byte(n) {
			t.Fatalf("block %d: %v, %v", n, block[0], err)
		}
	}
	if _, err := c.Read(block); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	wg.Wait()
	if st := r.proxy.Stats(); st.In != size || st.Out != size {
		t.Errorf("%+v", st)
	}
}

func TestIdleConnectionHoldsNoPipe(t *testing.T) {
	r := newRig(t, echo)
	r.start()
	conns := make([]*net.TCPConn, 50)
	before := openFDs(t)
	for i := range conns {
		conns[i] = r.dial()
		io.WriteString(conns[i], "x")
		io.ReadFull(conns[i], make([]byte, 1))
	}
	// Each has the client's end, two of the proxy's, and the server's.
	until(t, "pipes to be given back", func() bool {
		return openFDs(t)-before <= 5*len(conns)+2*spareNumber
	})
	r.proxy.pipes.mu.Lock()
	spare := len(r.proxy.pipes.spare)
	r.proxy.pipes.mu.Unlock()
	if got := openFDs(t) - before - 2*spare; got > 5*len(conns) {
		t.Errorf("%d descriptors for %d connections", got, len(conns))
	}
	for _, c := range conns {
		c.Close()
	}
}

func TestRefusingServerIsGivenAMoment(t *testing.T) {
	r := newRig(t, echo)
	var tries atomic.Int32
	r.dialer.before = func(context.Context) error {
		if tries.Add(1) < 5 {
			return syscall.ECONNREFUSED
		}
		return nil
	}
	r.start()
	c := r.dial()
	c.CloseWrite()
	if _, err := readAll(c); err != nil {
		t.Error(err)
	}
	if got := r.waker.calls.Load(); got != 1 {
		t.Errorf("%d wakes", got)
	}
}

func TestRefusingServerResetsInTheEnd(t *testing.T) {
	r := newRig(t, echo, func(o *Options) { o.Limits.RefusedFor = 20 * time.Millisecond })
	r.dialer.before = func(context.Context) error { return syscall.ECONNREFUSED }
	r.start()
	if _, err := readAll(r.dial()); !isReset(err) {
		t.Errorf("got %v", err)
	}
}

func TestUnreachableWorkloadIsWokenAgain(t *testing.T) {
	r := newRig(t, echo)
	reasons := make(chan string, 10)
	r.waker.wake = func(_ context.Context, reason string) error {
		reasons <- reason
		return nil
	}
	var tries atomic.Int32
	r.dialer.before = func(context.Context) error {
		if tries.Add(1) == 1 {
			return syscall.EHOSTUNREACH
		}
		return nil
	}
	r.start()
	c := r.dial()
	c.CloseWrite()
	if _, err := readAll(c); err != nil {
		t.Error(err)
	}
	if a, b := <-reasons, <-reasons; a != "connection" || b != "dial" {
		t.Errorf("reasons %q, %q", a, b)
	}
}

func TestSlowDialHoldsUpNobodyElse(t *testing.T) {
	r := newRig(t, echo)
	var tries atomic.Int32
	release := make(chan struct{})
	r.dialer.before = func(ctx context.Context) error {
		if tries.Add(1) == 1 {
			<-release
		}
		return nil
	}
	r.start()
	slow := r.dial()
	until(t, "the first dial", func() bool { return tries.Load() == 1 })
	quick := r.dial()
	quick.CloseWrite()
	if _, err := readAll(quick); err != nil {
		t.Error(err)
	}
	io.WriteString(slow, "patience")
	slow.CloseWrite()
	close(release)
	if got, err := readAll(slow); got != "patience" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDialDeadline(t *testing.T) {
	r := newRig(t, echo, func(o *Options) { o.Limits.DialTimeout = 20 * time.Millisecond })
	r.dialer.before = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r.start()
	if _, err := readAll(r.dial()); !isReset(err) {
		t.Errorf("got %v", err)
	}
	until(t, "the end", func() bool { return len(r.observer.ends()) == 1 })
	if d := r.observer.ends()[0]; !errors.Is(d.Err, context.DeadlineExceeded) {
		t.Errorf("told %v", d.Err)
	}
}

func TestGrace(t *testing.T) {
	r := newRig(t, echo, func(o *Options) { o.Grace = 100 * time.Millisecond })
	r.start()
	ends, stays := r.dial(), r.dial()
	until(t, "both to be taken", func() bool { return r.proxy.Active() == 2 })
	r.cancel()
	io.WriteString(ends, "last words")
	ends.CloseWrite()
	if got, err := readAll(ends); got != "last words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	if _, err := readAll(stays); !isReset(err) {
		t.Errorf("after the grace: %v", err)
	}
}

func TestUnlimitedGraceEndsWithShutdown(t *testing.T) {
	r := newRig(t, echo, func(o *Options) { o.Grace = Unlimited })
	r.start()
	c := r.dial()
	until(t, "it to be taken", func() bool { return r.proxy.Active() == 1 })
	r.cancel()
	io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.proxy.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown: %v", err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	if _, err := readAll(c); !isReset(err) {
		t.Errorf("got %v", err)
	}
}

func TestDialerOfNoSocket(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	if _, err := workloadSide(a); err == nil {
		t.Error("a pipe in memory was taken")
	}
}

func TestKeepAlivesGoToTheClientOnly(t *testing.T) {
	r := newRig(t, echo)
	file, front := listenFile(t)
	l, err := newListener(file, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	dialTCP(t, front)
	if err := l.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	fd, _, err := l.accept()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientSide(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	workload, err := workloadSide(r.dial())
	if err != nil {
		t.Fatal(err)
	}
	for side, want := range map[*side]int{client: 1, workload: 0} {
		side.control(func(fd int) error {
			if got, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); got != want {
				t.Errorf("SO_KEEPALIVE is %d, want %d", got, want)
			}
			return nil
		})
	}
}

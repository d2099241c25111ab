package wakeproxy

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is what one move of bytes can take. Each segment received
	// takes one of the pipe's slots of 4 KiB, however small.
	pipeSize = 256 << 10
	// spareNumber is how many pipes a node keeps for later.
	spareNumber = 64
	// spliceFlags: move pages, don't wait.
	spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK
)

// pump moves bytes from src to dst inside the kernel. It has a pipe only while
// bytes are on their way, so an idle connection costs two descriptors.
type pump struct {
	src, dst *side
	pipes    *pipePool
	counters []*atomic.Int64 // told of bytes as they are delivered
	done     <-chan struct{} // ends waits for resources

	onWay onWay // also before the first run: what another pump has left
	pace  pace
}

// onWay are bytes that were read and not yet delivered. Without any there is no
// pipe.
type onWay struct {
	pipe  *pipe
	bytes int
}

// run returns at the end of src's stream, with both errors nil, or with the
// error of the side that failed. After an interruption (os.ErrDeadlineExceeded)
// it can be run again: nothing is lost.
func (p *pump) run() (readErr, writeErr error) {
	for {
		if p.onWay.bytes == 0 {
			if err := p.fill(); err != nil || p.onWay.bytes == 0 {
				return err, nil
			}
		}
		n := p.onWay.bytes
		if err := p.flush(); err != nil {
			if !interrupted(err) {
				p.onWay.pipe.close() // it holds bytes
			}
			return nil, err
		}
		p.pipes.put(p.onWay.pipe)
		p.onWay.pipe = nil
		p.pace.moved(n, time.Now())
	}
}

// fill waits for bytes and takes them into a pipe. At the end of the stream
// there are none.
func (p *pump) fill() (failed error) {
	gathered := false
	err := p.src.raw.Read(func(fd uintptr) bool {
		var pipe *pipe
		if pipe, failed = p.pipe(); failed != nil {
			return true
		}
		var n int
		if n, failed = splice(int(fd), pipe.w, pipeSize); failed == unix.EAGAIN && p.pace.busy && !gathered {
			gathered = true
			p.pipes.gather()
			n, failed = splice(int(fd), pipe.w, pipeSize)
		}
		if n > 0 {
			p.onWay = onWay{pipe, n}
			return true
		}
		p.pipes.put(pipe)
		return failed != unix.EAGAIN
	})
	if err == nil {
		err = failed
	}
	return err
}

// flush delivers what is on its way.
func (p *pump) flush() error {
	var failed error
	err := p.dst.raw.Write(func(fd uintptr) bool {
		for p.onWay.bytes > 0 {
			var moved int
			if moved, failed = splice(p.onWay.pipe.r, int(fd), p.onWay.bytes); failed != nil {
				return failed != unix.EAGAIN
			}
			p.onWay.bytes -= moved
			for _, c := range p.counters {
				c.Add(int64(moved))
			}
		}
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}

// pipe gets a pipe; when the system has none left it waits for one.
func (p *pump) pipe() (*pipe, error) {
	wait := time.Millisecond
	for {
		pipe, err := p.pipes.get()
		if err == nil || !shortage(err) {
			return pipe, err
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, 100*time.Millisecond)
		case <-p.done:
			return nil, err
		}
	}
}

// shortage reports whether err is one that time may heal.
func shortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// splice moves at most n bytes. It returns 0 and nil at the end of the stream.
func splice(from, to, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, spliceFlags)
		if err == unix.EINTR {
			continue
		}
		return int(max(moved, 0)), err
	}
}

// pipe is an empty pipe between two uses. One that another process began to empty
// has no end to write to (-1), and is used no more than once.
type pipe struct{ r, w int }

func (p *pipe) close() {
	_ = unix.Close(p.r)
	if p.w >= 0 {
		_ = unix.Close(p.w)
	}
}

// pipePool keeps some pipes for later: making one costs as much as a small
// request.
type pipePool struct {
	gathering atomic.Int32 // pumps that let bytes gather

	mu     sync.Mutex // guards the fields below
	spare  []*pipe
	closed bool
}

func (pp *pipePool) get() (*pipe, error) {
	pp.mu.Lock()
	if n := len(pp.spare); n > 0 {
		p := pp.spare[n-1]
		pp.spare = pp.spare[:n-1]
		pp.mu.Unlock()
		return p, nil
	}
	pp.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	// Without the privilege, beyond a limit of the user's, pipes stay small.
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}, nil
}

// filled is a pipe with bytes, as if they had just been read; they must be fewer than pipeSize.
func (pp *pipePool) filled(bytes []byte) (onWay, error) {
	if len(bytes) == 0 {
		return onWay{}, nil
	}
	p, err := pp.get()
	if err != nil {
		return onWay{}, err
	}
	n, err := unix.Write(p.w, bytes)
	if err == nil && n < len(bytes) {
		err = unix.ENOBUFS
	}
	if err != nil {
		p.close()
		return onWay{}, os.NewSyscallError("write to a pipe", err)
	}
	return onWay{p, n}, nil
}

// put takes back an empty pipe.
func (pp *pipePool) put(p *pipe) {
	pp.mu.Lock()
	if !pp.closed && p.w >= 0 && len(pp.spare) < spareNumber {
		pp.spare = append(pp.spare, p)
		p = nil
	}
	pp.mu.Unlock()
	if p != nil {
		p.close()
	}
}

func (pp *pipePool) close() {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	pp.closed = true
	for _, p := range pp.spare {
		p.close()
	}
	pp.spare = nil
}

package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// input is stdin: a goroutine copies the client's FIFO into a pipe.
type input struct {
	sandbox *os.File // the pipe's reading end
	source  source
	pipe    *os.File // the pipe's writing end, closed by the goroutine
	onInput func()
	done    chan struct{}
}

func openInput(uri string, onInput func()) (*input, error) {
	if uri == "" {
		return nil, nil
	}
	s, err := openSource(uri)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standard input: %w", err), s.Close())
	}
	in := &input{sandbox: r, source: s, pipe: w, onInput: onInput, done: make(chan struct{})}
	go in.copy()
	return in, nil
}

func (in *input) copy() {
	defer close(in.done)
	_ = in.source.copyTo(in.pipe, in.onInput)
	_ = in.pipe.Close()
}

// finish ends the input after what is there now.
func (in *input) finish() { in.source.finish() }

// close is for a process that has ended. A child of it may still hold the pipe,
// so a write that waits for room is ended by its deadline.
func (in *input) close() error {
	in.source.finish()
	_ = in.pipe.SetWriteDeadline(time.Unix(1, 0))
	<-in.done
	return errors.Join(in.sandbox.Close(), in.source.Close())
}

// source reads the client's FIFO. It holds the FIFO's writing end too, so that
// a client that goes away does not end the stream.
type source struct {
	*os.File
	last *sync.Once
}

func openSource(uri string) (source, error) {
	t, err := parse(uri)
	if err != nil {
		return source{}, err
	}
	open := openBoth
	if !t.fifo {
		open = os.Open
	}
	f, err := open(t.path)
	return source{File: f, last: new(sync.Once)}, err
}

// finish makes copyTo return once it has copied what the FIFO holds now.
func (s source) finish() {
	s.last.Do(func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
}

// copyTo copies until finish is called, or the input (a file) or dst ends.
func (s source) copyTo(dst *os.File, each func()) error {
	buf := make([]byte, 4096)
	for {
		n, err := s.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return s.drain(dst, buf, each)
		}
		if werr := forward(dst, buf[:n], each); werr != nil {
			return werr
		}
		if err != nil {
			return ended(err)
		}
	}
}

// drain copies what can be had without waiting: the deadline that finish has
// set keeps the runtime from trying.
func (s source) drain(dst *os.File, buf []byte, each func()) error {
	conn, err := s.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var rerr error
		if err := conn.Control(func(fd uintptr) { n, rerr = unix.Read(int(fd), buf) }); err != nil {
			return err
		}
		switch {
		case errors.Is(rerr, unix.EINTR):
			continue
		case errors.Is(rerr, unix.EAGAIN), rerr == nil && n == 0:
			return nil
		case rerr != nil:
			return rerr
		}
		if err := forward(dst, buf[:n], each); err != nil {
			return err
		}
	}
}

func forward(dst *os.File, data []byte, each func()) error {
	if len(data) == 0 {
		return nil
	}
	if _, err := dst.Write(data); err != nil {
		return err
	}
	if each != nil {
		each()
	}
	return nil
}

// ended takes the ordinary ends of a stream for success.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}

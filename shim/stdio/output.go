package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// output is stdout or stderr. A nil output is a stream that is not there.
type output struct {
	sandbox *os.File // write-only: the FIFO, or the file in append mode
	hold    *os.File // both ends of the FIFO, so that it has a reader; nil for a file
}

func openOutput(uri string) (*output, error) {
	if uri == "" {
		return nil, nil
	}
	t, err := parse(uri)
	if err != nil {
		return nil, err
	}
	if !t.fifo {
		return openFile(t.path)
	}
	hold, err := openBoth(t.path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(t.path, os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standard stream: %w", err), hold.Close())
	}
	return &output{sandbox: f, hold: hold}, nil
}

// openFile opens a file to append to, whatever other writers and sandboxes before
// have written. It is made with the mode that containerd gives logs.
func openFile(path string) (*output, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("standard stream: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("standard stream: %w", err)
	}
	return &output{sandbox: f}, nil
}

// openBoth opens a FIFO for reading and writing, which never blocks.
func openBoth(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("standard stream: %w", err)
	}
	return f, nil
}

func (o *output) file() *os.File {
	if o == nil {
		return nil
	}
	return o.sandbox
}

// close gives up the reading side, waits until what is left has a reader, and
// closes the writing side: the reader's end of file.
func (o *output) close(ctx context.Context) error {
	if o == nil {
		return nil
	}
	var held, waited error
	if o.hold != nil {
		held = o.hold.Close()
		waited = awaitReader(ctx, o.sandbox)
	}
	return errors.Join(held, waited, o.sandbox.Close())
}

// readerPoll is the time between two looks for a reader: nothing tells a
// writer that a reader came.
const readerPoll = 5 * time.Millisecond

// awaitReader returns when the FIFO is empty or somebody has it open to read;
// what is in it then outlives our close.
func awaitReader(ctx context.Context, f *os.File) error {
	for {
		if ok, err := readable(f); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("output of %s was not read: %w", f.Name(), context.Cause(ctx))
		case <-time.After(readerPoll):
		}
	}
}

func readable(f *os.File) (ok bool, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	cerr := conn.Control(func(fd uintptr) {
		var n int
		// TIOCINQ is FIONREAD: the bytes in the pipe.
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); n == 0 || err != nil {
			ok = err == nil
			return
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		_, err = unix.Poll(fds, 0)
		ok = err == nil && fds[0].Revents&unix.POLLERR == 0
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
	})
	return ok, errors.Join(err, cerr)
}

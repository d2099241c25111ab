package stdio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// terminal serves the socket that one pty's master arrives on, and copies
// between the master and the FIFOs.
type terminal struct {
	path   string // of the socket, in a directory of its own
	socket *net.UnixListener
	out    *output // where the terminal's output goes; nil for nowhere
	in     *source // nil: no input
	each   func()
	done   chan struct{} // the copies have ended

	mu     sync.Mutex // guards the fields below
	master *os.File
	size   *unix.Winsize // wanted before there was a master
}

func openConsole(c Config, out *output) (*terminal, error) {
	con := &terminal{out: out, each: c.OnInput, done: make(chan struct{})}
	if c.Stdin != "" {
		in, err := openSource(c.Stdin)
		if err != nil {
			return nil, err
		}
		con.in = &in
	}
	if err := con.listen(c.Dir); err != nil {
		return nil, errors.Join(err, con.closeSource())
	}
	go con.serve()
	return con, nil
}

func (c *terminal) listen(parent string) error {
	dir, err := os.MkdirTemp(parent, "pty")
	if err != nil {
		return fmt.Errorf("console socket: %w", err)
	}
	c.path = filepath.Join(dir, "s")
	c.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: c.path, Net: "unix"})
	if err != nil {
		return errors.Join(fmt.Errorf("console socket: %w", err), os.RemoveAll(dir))
	}
	return nil
}

// serve takes one master and copies until its terminal is gone.
func (c *terminal) serve() {
	defer close(c.done)
	master, err := c.receive()
	if err != nil {
		return
	}
	c.adopt(master)
	var input sync.WaitGroup
	if c.in != nil {
		input.Go(func() { _ = c.in.copyTo(master, c.each) })
	}
	c.copyOutput(master)
	c.closeInput()
	_ = master.Close() // ends an input that waits for room
	input.Wait()
}

// receiveTimeout bounds the wait of a connected runsc for its one message.
const receiveTimeout = 10 * time.Second

func (c *terminal) receive() (*os.File, error) {
	conn, err := c.socket.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(receiveTimeout)); err != nil {
		return nil, err
	}
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("console socket: no descriptor: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	// The poller must own the master: a plain read of it could not be ended.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(err, unix.Close(fds[0]))
	}
	return os.NewFile(uintptr(fds[0]), "pty"), nil
}

func (c *terminal) adopt(master *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.master = master
	if c.size != nil {
		_ = setSize(master, c.size)
	}
}

// copyOutput reads on when nobody wants the output: the process must not block.
func (c *terminal) copyOutput(master *os.File) {
	buf := make([]byte, 4096)
	dst := c.out.file()
	for {
		n, err := master.Read(buf)
		if n > 0 && dst != nil {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				dst = nil
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *terminal) resize(width, height uint16) error {
	size := &unix.Winsize{Col: width, Row: height}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master == nil {
		c.size = size
		return nil
	}
	return setSize(c.master, size)
}

func setSize(master *os.File, size *unix.Winsize) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) }); err != nil {
		return err
	}
	return serr
}

func (c *terminal) closeInput() {
	if c.in != nil {
		c.in.finish()
	}
}

// close waits for the rest of the output, until ctx ends, and stops all.
func (c *terminal) close(ctx context.Context) error {
	c.endAccept()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.interrupt()
		<-c.done
	}
	return errors.Join(c.socket.Close(), os.RemoveAll(filepath.Dir(c.path)), c.closeSource())
}

// endAccept connects with nothing to say. A pty that has been sent but not yet
// taken is before it in the queue; where there is none, it ends the wait.
func (c *terminal) endAccept() {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path, Net: "unix"})
	if err != nil {
		_ = c.socket.Close()
		return
	}
	_ = conn.Close()
}

// interrupt ends the copies of a terminal that somebody still holds.
func (c *terminal) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master != nil {
		_ = c.master.SetDeadline(time.Unix(1, 0))
	}
	if c.out != nil {
		_ = c.out.sandbox.SetDeadline(time.Unix(1, 0))
	}
}

func (c *terminal) closeSource() error {
	if c.in == nil {
		return nil
	}
	return c.in.Close()
}

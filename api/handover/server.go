package handover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Server is the daemon's end.
type Server struct {
	path     string
	listener *net.UnixListener
	lock     *os.File
}

// Listen makes the socket at path, with mode 0600, in the place of one that a
// dead daemon left. A lock beside it (path + ".lock") tells a dead daemon from
// a living one, for which the error is ErrInUse. Whatever else is at path is
// left alone and is an error.
func Listen(path string) (*Server, error) {
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	l, err := bind(path)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return &Server{path: path, listener: l, lock: lock}, nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, ErrInUse
		}
		return nil, os.NewSyscallError("flock", err)
	}
	return f, nil
}

// bind makes the socket under another name and renames it: nobody sees it
// with a wider mode, and there is no moment without one.
func bind(path string) (*net.UnixListener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() != os.ModeSocket {
		return nil, errors.New("there is something that is no socket")
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: temp, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(temp, 0o600); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		l.Close()
		return nil, errors.Join(err, os.Remove(temp))
	}
	return l, nil
}

// Accept waits for the next shim. A process of another user is turned away:
// the error is ErrCredentials then, and Accept can be called again. So it can
// after any error but net.ErrClosed and ctx's cause.
func (s *Server) Accept(ctx context.Context) (*Peer, error) {
	defer deadline(ctx, s.listener.SetDeadline)()
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("accept a shim: %w", err)
	}
	p, cred, err := newPackets(conn)
	if err != nil {
		return nil, fmt.Errorf("accept a shim: %w", err)
	}
	return &Peer{packets: p, Pid: int(cred.Pid), Uid: int(cred.Uid)}, nil
}

// Close removes the socket and lets another daemon have the place. Peers are
// not touched.
func (s *Server) Close() error {
	return errors.Join(os.Remove(s.path), s.listener.Close(), s.lock.Close())
}

// Peer is a shim that has connected. Receive and Acknowledge are for one
// goroutine.
type Peer struct {
	Pid, Uid int // as the kernel tells them, of whom connected

	packets  *packets
	sequence uint64 // of the last hello
}

// answerTimeout bounds the sending of an answer to a shim that doesn't read.
const answerTimeout = 5 * time.Second

// Receive waits for the next hello. It must be acknowledged before the next
// call. The files, the pod's network namespace and one listener for each of
// the hello's ports, are the caller's (CloseFiles). Pings are answered
// meanwhile. Errors: ErrGone when the shim is gone; ErrMalformed and
// ErrVersion, of which the shim is told as far as its message can be read, and
// after which Receive can be called again, as after ErrEnded; ctx's cause. With an error no descriptor stays open.
func (p *Peer) Receive(ctx context.Context) (Hello, []*os.File, error) {
	for {
		m, fds, err := p.next(ctx)
		if err == nil && m.Type == typeHello {
			return p.hello(ctx, m, fds)
		}
		closeFDs(fds)
		switch {
		case err != nil:
		case m.Type == typePing:
			err = p.answer(ctx, m.Sequence, nil)
		case m.Type == typeEnded:
			err = ErrEnded
		}
		if err != nil {
			return Hello{}, nil, fmt.Errorf("receive from the shim with pid %d: %w", p.Pid, err)
		}
	}
}

// next reads one message. What can't be decoded is answered.
func (p *Peer) next(ctx context.Context) (message, []int, error) {
	data, fds, err := p.packets.receive(ctx)
	if err != nil {
		return message{}, nil, err
	}
	m, err := decode(data)
	if err != nil {
		closeFDs(fds)
		return m, nil, errors.Join(err, p.answer(ctx, m.Sequence, err))
	}
	return m, fds, nil
}

// hello completes a hello with the descriptors that follow it.
func (p *Peer) hello(ctx context.Context, m message, fds []int) (Hello, []*os.File, error) {
	p.sequence = m.Sequence
	fds, err := p.more(ctx, m, fds)
	if err == nil {
		if m.Hello == nil {
			err = fmt.Errorf("%w: an empty hello", ErrMalformed)
		} else {
			err = m.Hello.valid(len(fds))
		}
	}
	if err != nil {
		closeFDs(fds)
		if errors.Is(err, ErrMalformed) {
			err = errors.Join(err, p.Acknowledge(err))
		}
		return Hello{}, nil, fmt.Errorf("receive from the shim with pid %d: %w", p.Pid, err)
	}
	return *m.Hello, asFiles(*m.Hello, fds), nil
}

// more receives until all the descriptors of m are there. It returns what it
// has with an error too.
func (p *Peer) more(ctx context.Context, m message, fds []int) ([]int, error) {
	if m.Files > maxFiles || len(fds) > m.Files {
		return fds, fmt.Errorf("%w: %d descriptors of %d", ErrMalformed, len(fds), m.Files)
	}
	for len(fds) < m.Files {
		next, more, err := p.next(ctx)
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
		if next.Type != typeFiles || next.Sequence != m.Sequence || len(more) == 0 || len(fds) > m.Files {
			return fds, fmt.Errorf("%w: %d descriptors of %d, then %q", ErrMalformed, len(fds), m.Files, next.Type)
		}
	}
	return fds, nil
}

func asFiles(h Hello, fds []int) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		name := h.Namespace + "/" + h.ID + " network namespace"
		if i > 0 {
			name = fmt.Sprintf("%s/%s port %d", h.Namespace, h.ID, h.Ports[i-1])
		}
		files[i] = os.NewFile(uintptr(fd), name)
	}
	return files
}

// Return gives the shim listening sockets, by port, that an earlier shim of its
// workload has left. To be called between Receive and Acknowledge. The files
// stay the caller's. A shim that knows nothing of it closes what it gets.
func (p *Peer) Return(kept map[uint16]*os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	ports := slices.Sorted(maps.Keys(kept))
	for some := range slices.Chunk(ports, maxFilesPerMessage) {
		files := make([]*os.File, len(some))
		for i, port := range some {
			files[i] = kept[port]
		}
		if err := p.packets.send(ctx, message{Type: typeKept, Sequence: p.sequence, Ports: some}, files); err != nil {
			return err
		}
	}
	return nil
}

// Acknowledge answers the hello received last: it holds from now on, or, with
// an error, it is refused and the one before it holds.
func (p *Peer) Acknowledge(err error) error {
	return p.answer(context.Background(), p.sequence, err)
}

func (p *Peer) answer(ctx context.Context, sequence uint64, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m := message{Type: typeAck, Sequence: sequence, OK: refusal == nil}
	if refusal != nil {
		m.Error = refusal.Error()
		m.Error = m.Error[:min(len(m.Error), 1024)]
	}
	return p.packets.send(ctx, m, nil)
}

// Close ends the connection; the shim learns it at once. It may be called
// while Receive waits, which returns ErrGone then.
func (p *Peer) Close() error { return p.packets.conn.Close() }

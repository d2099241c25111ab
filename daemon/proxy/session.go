package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Session is the wake proxy of one registration. Offer and End are called by one goroutine.
type Session struct {
	opts  Options
	key   node.Key
	shim  Waker
	state func() string
	log   *slog.Logger
	proxy *wakeproxy.Proxy

	ports   map[uint16]*port
	serving sync.WaitGroup
	retired []*os.File // namespaces of earlier offers: a dial may still use them

	mu     sync.Mutex
	target netip.Addr // guarded by mu
	pod    *os.File   // guarded by mu
}

// port is one served listening socket.
type port struct {
	listener *os.File
	cancel   context.CancelFunc
}

// Offer replaces the earlier offer. On an error nothing has changed, and the files are closed.
func (s *Session) Offer(o Offer) error {
	if err := s.check(o); err != nil {
		o.Close()
		return err
	}
	s.setTarget(o)
	for number, old := range s.ports {
		if file := o.Listeners[number]; file == nil || !sameFile(file, old.listener) {
			s.stop(number)
		}
	}
	for number, file := range o.Listeners {
		if s.ports[number] != nil {
			_ = file.Close() // the same socket is being served
			continue
		}
		s.serve(number, file)
	}
	return nil
}

func (s *Session) check(o Offer) error {
	if !o.Target.IsValid() && len(o.Listeners) > 0 {
		return errors.New("listeners were offered without a target address")
	}
	if o.Pod == nil && len(o.Listeners) > 0 {
		return errors.New("listeners were offered without the pod's network namespace")
	}
	for number, file := range o.Listeners {
		if number == 0 || file == nil {
			return fmt.Errorf("port %d was offered without a listening socket", number)
		}
	}
	return nil
}

func (s *Session) setTarget(o Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = o.Target
	switch {
	case o.Pod == nil:
	case s.pod != nil && sameFile(s.pod, o.Pod):
		_ = o.Pod.Close()
	default:
		if s.pod != nil {
			s.retired = append(s.retired, s.pod)
		}
		s.pod = o.Pod
	}
}

// serve starts to serve a socket.
func (s *Session) serve(number uint16, file *os.File) {
	ctx, cancel := context.WithCancel(context.Background())
	s.ports[number] = &port{listener: file, cancel: cancel}
	s.serving.Go(func() {
		if err := s.proxy.Serve(ctx, file, number); err != nil && !errors.Is(err, wakeproxy.ErrClosed) {
			s.log.Error("port is not served", "port", number, "error", err)
		}
	})
}

// stop accepts no more on a port, and leaves what it accepted alone.
func (s *Session) stop(number uint16) {
	p := s.ports[number]
	delete(s.ports, number)
	p.cancel()
	_ = p.listener.Close() // Serve has a duplicate
}

// End accepts no more, gives the connections their grace, resets what is left, and closes everything.
func (s *Session) End() {
	for number := range s.ports {
		s.stop(number)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	if err := s.proxy.Shutdown(ctx); err != nil {
		s.log.Warn("connections were reset at the end of their grace", "error", err)
	}
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, file := range append(s.retired, s.pod) {
		closeFile(file)
	}
}

// Use tells the connections held or drained, and a counter that grows whenever they move bytes.
func (s *Session) Use() (connections int, progress uint64) {
	stats := s.proxy.Stats()
	return stats.Held + stats.Active, uint64(stats.In + stats.Out)
}

// sameFile reports whether two descriptors mean one socket or one namespace.
func sameFile(a, b *os.File) bool {
	var sa, sb unix.Stat_t
	if stat(a, &sa) != nil || stat(b, &sb) != nil {
		return false
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// stat does not use File.Fd, which would make the socket blocking for all who share it.
func stat(file *os.File, st *unix.Stat_t) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Fstat(int(fd), st) }); err != nil {
		return err
	}
	return failed
}

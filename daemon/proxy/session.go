package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Session is the wake proxy of one workload. Offer, Orphan, Adopt, Kept, Reset, End and Detach are called by one goroutine at a time.
type Session struct {
	opts  Options
	key   node.Key
	log   *slog.Logger
	proxy atomic.Pointer[wakeproxy.Proxy]

	ports   map[uint16]*port
	serving sync.WaitGroup
	retired []*os.File // namespaces of earlier offers: a dial may still use them

	mu        sync.Mutex
	shim      shim          // guarded by mu
	reachable chan struct{} // guarded by mu; closed unless an orphan's workload has not been started again
	started   time.Time     // guarded by mu; when an orphan's workload was reachable again
	target    netip.Addr    // guarded by mu
	pod       *os.File      // guarded by mu
	podPath   string        // guarded by mu
}

// shim is whom a session asks.
type shim struct {
	Waker
	workload *node.Workload
}

func (s shim) state() string { return s.workload.State() }

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
	started := s.setTarget(o)
	for number, old := range s.ports {
		if !started { // what an earlier shim left waits for that
			break
		}
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

// setTarget reports whether the workload can be reached from now on.
func (s *Session) setTarget(o Offer) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.podPath = o.Target, o.PodPath
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
	return s.targetReached()
}

// serve starts to serve a socket.
func (s *Session) serve(number uint16, file *os.File) {
	ctx, cancel := context.WithCancel(context.Background())
	s.ports[number] = &port{listener: file, cancel: cancel}
	proxy := s.proxy.Load()
	s.serving.Go(func() {
		if err := proxy.Serve(ctx, file, number); err != nil && !errors.Is(err, wakeproxy.ErrClosed) {
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
	s.finish(func(ctx context.Context, p *wakeproxy.Proxy) {
		if err := p.Shutdown(ctx); err != nil {
			s.log.Warn("connections were reset at the end of their grace", "error", err)
		}
	})
}

// Detach ends the session as End does, but lets go of its connections, and returns them: they are the caller's.
func (s *Session) Detach() (loose []wakeproxy.Detached) {
	s.finish(func(ctx context.Context, p *wakeproxy.Proxy) { loose = p.Detach(ctx) })
	return loose
}

// finish has the proxy ended within the grace.
func (s *Session) finish(end func(context.Context, *wakeproxy.Proxy)) {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	for number := range s.ports {
		s.stop(number)
	}
	end(ctx, s.proxy.Load())
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, file := range append(s.retired, s.pod) {
		closeFile(file)
	}
	s.retired, s.pod = nil, nil
}

// Reset resets at once whoever waits or is served, and holds nobody any more until the next offer.
func (s *Session) Reset() {
	for number := range s.ports {
		s.stop(number)
	}
	s.dropConnections()
}

// dropConnections resets what was accepted. Ports that are served go on to be.
func (s *Session) dropConnections() {
	old := s.proxy.Swap(s.newProxy())
	for number, p := range s.ports {
		p.cancel()
		s.serve(number, p.listener)
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = old.Shutdown(now) // its error is that connections were reset
}

// Use tells the connections held or drained, and a counter that grows whenever they move bytes.
func (s *Session) Use() (connections int, progress uint64) {
	stats := s.proxy.Load().Stats()
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

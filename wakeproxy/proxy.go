package wakeproxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of Serve and of connections.
var (
	// ErrNotListening: the file is no listening socket, or no longer one.
	ErrNotListening = errors.New("not a listening socket")
	// ErrClosed: the Proxy was shut down.
	ErrClosed = errors.New("the proxy is shut down")
	// ErrHeldTooLong: the wake has not come within Limits.HoldFor.
	ErrHeldTooLong = errors.New("the workload was not awake within the time that connections are held")
	// ErrGrace: the connection outlived its listener for too long.
	ErrGrace = errors.New("the proxy ends and the connection's grace is over")
)

// Unlimited as Options.Grace lets connections outlive their listener until
// they end or Shutdown is called.
const Unlimited time.Duration = -1

// Dialer connects to the workload.
type Dialer interface {
	// Dial connects to a port of the workload with the client's address, so
	// that the workload sees who calls. The connection must be a socket of
	// the kernel (it implements syscall.Conn, as *net.TCPConn does); the
	// proxy closes it. A refused connection is reported as
	// syscall.ECONNREFUSED.
	Dial(ctx context.Context, client netip.AddrPort, port uint16) (net.Conn, error)
}

// Options configure a Proxy. Waker and Dialer are required.
type Options struct {
	Waker  Waker
	Dialer Dialer
	Limits Limits
	// LimitsNow, when set, is asked for the limits each time that they
	// matter, in place of Limits: they may become known late, or change.
	LimitsNow func() Limits
	// AnswerHTTP refuses what looks like an HTTP/1 request with the status
	// 503 and, where another try has sense, Retry-After. All else is reset.
	AnswerHTTP bool
	// Node is shared by all proxies of the process. Without it the Proxy has
	// one of its own.
	Node *Node
	// Grace is how long connections may go on when the context of their
	// Serve has ended; they are reset then. Default 10 s; see Unlimited.
	Grace time.Duration
	// LookFor is how long a client of ServeProbes is given to show what it
	// wants; one that waits for the server to speak waits so long for the wake.
	// Default 100 ms.
	LookFor  time.Duration
	Log      *slog.Logger // default: none
	Observer Observer     // default: none
}

// Proxy holds and drains the connections of one workload.
type Proxy struct {
	waker    *flight
	dialer   Dialer
	limits   func() Limits // with defaults
	answer   bool
	admit    admission
	pipes    *pipePool
	grace    time.Duration
	lookFor  time.Duration
	log      *slog.Logger
	observer Observer

	active  atomic.Int64
	in, out atomic.Int64

	stopping context.Context // ends when Serve may accept no more
	stop     context.CancelFunc
	living   context.Context // ends when no connection may go on
	kill     context.CancelFunc
	letting  context.Context // ends when connections are let go of
	let      context.CancelFunc

	mu      sync.Mutex // guards the fields below
	loose   []Detached
	servers map[*server]struct{}
	idle    *sync.Cond // servers became empty
	ownNode *Node
}

// New returns a Proxy. It starts nothing.
func New(o Options) *Proxy {
	p := &Proxy{
		dialer: o.Dialer, answer: o.AnswerHTTP, grace: o.Grace, lookFor: o.LookFor,
		log: o.Log, observer: o.Observer, servers: map[*server]struct{}{},
	}
	setDefault(&p.grace, 10*time.Second)
	setDefault(&p.lookFor, 100*time.Millisecond)
	p.limits = func() Limits {
		if o.LimitsNow != nil {
			return o.LimitsNow().withDefaults()
		}
		return o.Limits.withDefaults()
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.observer == nil {
		p.observer = silent{}
	}
	node := o.Node
	if node == nil {
		node = NewNode(0)
		p.ownNode = node
	}
	p.idle = sync.NewCond(&p.mu)
	p.waker = &flight{waker: o.Waker, woke: p.observer.Woke}
	p.admit = admission{workload: newSlots(func() int { return p.limits().Connections }), node: node.slots}
	p.pipes = &node.pipes
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.living, p.kill = context.WithCancel(context.Background())
	p.letting, p.let = context.WithCancel(context.Background())
	return p
}

// Serve holds and drains the connections of one listening socket, whose
// clients mean the given port of the workload; with port 0 each means the port
// that it has connected to, as where packets to many ports are redirected to one
// socket. It duplicates ln, which stays the caller's and can be served by
// others, before, after or at the same time.
// The socket becomes non-blocking for all.
//
// When ctx ends Serve accepts no more; what is in the backlog stays there
// unharmed. It returns when its connections have ended too, Options.Grace
// later at most. The error is nil then, ErrClosed after Shutdown, or tells
// why the socket can't be served (ErrNotListening).
func (p *Proxy) Serve(ctx context.Context, ln *os.File, port uint16) error {
	return p.run(ctx, ln, port, (*server).accepting)
}

func (p *Proxy) run(ctx context.Context, ln *os.File, port uint16, accepting func(*server) error) error {
	l, err := newListener(ln, port)
	if err != nil {
		return err
	}
	s, err := p.enter(ctx, l)
	if err != nil {
		l.close()
		return err
	}
	defer p.leave(s)
	err = accepting(s)
	s.end()
	switch {
	case ctx.Err() != nil:
		return nil
	case p.stopping.Err() != nil:
		return ErrClosed
	}
	return err
}

// Shutdown ends every Serve, waits for their connections to end, and resets
// those that are left when ctx ends. No Serve is running when it returns, and
// none can be started. The error is ctx's if connections had to be reset.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.stop()
	killed := context.AfterFunc(ctx, p.kill)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.servers) > 0 {
		p.idle.Wait()
	}
	if p.ownNode != nil {
		p.ownNode.Close()
	}
	if !killed() {
		return context.Cause(ctx)
	}
	return nil
}

// Active returns how many connections were accepted and have not ended.
func (p *Proxy) Active() int { return int(p.active.Load()) }

// Stats is a Proxy's state at one moment.
type Stats struct {
	// Held counts the connections that wait in the kernel, Active those that
	// are being drained.
	Held, Active int
	// In and Out count the bytes passed on to the workload and to clients
	// since New, those of running connections included: they tell activity.
	In, Out int64
}

// Stats asks the kernel once per port; it is cheap enough for every scrape.
func (p *Proxy) Stats() Stats {
	st := Stats{Active: p.Active(), In: p.in.Load(), Out: p.out.Load()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.servers {
		st.Held += s.listener.waiting()
	}
	return st
}

func (p *Proxy) enter(ctx context.Context, l *listener) (*server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping.Err() != nil {
		return nil, ErrClosed
	}
	s := newServer(ctx, p, l)
	p.servers[s] = struct{}{}
	return s, nil
}

func (p *Proxy) leave(s *server) {
	s.listener.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.servers, s)
	if len(p.servers) == 0 {
		p.idle.Broadcast()
	}
}

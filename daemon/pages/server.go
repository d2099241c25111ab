package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Store is the durable tier as this node has it.
type Store interface {
	// Known tells what is known of a workload's snapshots without asking the store. Its Sequence is 0 when none was committed.
	Known(w pages.Workload) (Known, error)
	// Open opens a generation, 0 being the newest, until ctx ends or Close. An *OpenError tells what else there is.
	Open(ctx context.Context, w pages.Workload, sequence uint64) (Snapshot, error)
	// Keep keeps a generation whatever its age.
	Keep(ctx context.Context, w pages.Workload, sequence uint64) error
}

// OpenError is why one generation could not be opened, of those that there are.
type OpenError struct {
	Generations []durable.Generation
	Err         error
}

func (e *OpenError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *OpenError) Unwrap() error { return e.Err }

// Known of a workload's lineage.
type Known struct {
	Name            string
	Sequence, Epoch uint64 // the newest that was committed, and the node's claim
}

// Snapshot is an open generation. Its methods but Close may be called from many goroutines.
type Snapshot interface {
	Name() string
	Generation() durable.Generation
	Generations() []durable.Generation // all that there are
	Document() []byte
	// File opens a file: durable.ErrNone.
	File(name string) (File, error)
	Close()
}

// File of a snapshot. What it reads was compared with what was written.
type File interface {
	io.ReaderAt
	Size() int64
}

// Options of a Server. Zero values are the defaults that are said here.
type Options struct {
	Store  Store  // nil: none is configured
	Secret []byte // signs tickets; required
	// Connections at once: 256. Sessions: 16. Reads under way: 32. Chunks that are kept ahead: 96, of one session 48.
	Connections, Sessions, Reads, Ahead, AheadEach int
	// OpenWithin and ReadWithin bound what one request may take: 20 s and 20 s.
	OpenWithin, ReadWithin time.Duration
	// Linger is how long a session outlives its last connection: 5 s.
	Linger time.Duration
	Log    *slog.Logger
}

func (o Options) withDefaults() Options {
	for field, value := range map[*int]int{&o.Connections: 256, &o.Sessions: 16, &o.Reads: 32, &o.Ahead: 96, &o.AheadEach: 48} {
		if *field <= 0 {
			*field = value
		}
	}
	for field, value := range map[*time.Duration]time.Duration{&o.OpenWithin: 20 * time.Second, &o.ReadWithin: 20 * time.Second, &o.Linger: 5 * time.Second} {
		if *field <= 0 {
			*field = value
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server serves. Make one with New.
type Server struct {
	opts   Options
	slots  chan struct{} // of connections
	reads  chan struct{} // of reads under way
	budget chan struct{} // of chunks ahead

	closing  sync.WaitGroup // of sessions
	mu       sync.Mutex     // guards the fields below, and the sessions' users
	sessions map[key]*session
	opened   uint64 // counts the opens of a newest generation
}

// New makes a server that does nothing yet.
func New(o Options) *Server {
	o = o.withDefaults()
	return &Server{
		opts: o, slots: make(chan struct{}, o.Connections), reads: make(chan struct{}, o.Reads), budget: make(chan struct{}, o.Ahead),
		sessions: make(map[key]*session),
	}
}

// Listen makes the socket, for its owner only, in the place of one that nobody serves any more.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace the socket for pages: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for pages: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("protect the socket for pages: %w", err)
	}
	return l, nil
}

// Serve serves on l until ctx ends, closes l, and waits for all that it began.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer s.closing.Wait()
	defer all.Wait()
	defer s.closeAll()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("serve pages: %w", err)
		}
		select {
		case s.slots <- struct{}{}:
		default:
			s.opts.Log.Warn("too many connections ask for pages: one is closed", "most", s.opts.Connections)
			_ = conn.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-s.slots }()
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			if !sameUser(conn) {
				return
			}
			(&connection{Server: s, ctx: ctx, conn: conn}).serve()
		})
	}
}

// sameUser is true of a peer with this process's rights, whatever the socket's mode.
func sameUser(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var who *unix.Ucred
	if e := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return false
	}
	return int(who.Uid) == os.Geteuid()
}

// connection is one of a shim or a sidecar.
type connection struct {
	*Server
	ctx  context.Context
	conn net.Conn
	open *session // nil: nothing is
}

// answerWithin is how long a peer may take to read an answer.
const answerWithin = 30 * time.Second

// serve answers one request after another until the peer leaves, or says what can't be understood.
func (c *connection) serve() {
	defer c.leave()
	for {
		var r pages.Request
		if err := pages.ReadMessage(c.conn, &r, pages.MaxRequest); err != nil {
			return
		}
		a, body, err := c.answer(r)
		if err != nil {
			a = pages.Answer{Class: classOf(err), Error: err.Error(), Generations: generationsOf(err)}
		}
		if len(a.Error) > pages.MaxAnswer/8 {
			a.Error = a.Error[:pages.MaxAnswer/8]
		}
		a.Bytes = len(body)
		_ = c.conn.SetWriteDeadline(time.Now().Add(answerWithin))
		if err := pages.WriteMessage(c.conn, a, pages.MaxAnswer); err != nil {
			return
		}
		_, err = c.conn.Write(body)
		release(r.Op, body)
		if err != nil {
			return
		}
	}
}

// errInvalid is about a request.
var errInvalid = errors.New("not a request that this daemon knows")

func (c *connection) answer(r pages.Request) (pages.Answer, []byte, error) {
	if c.opts.Store == nil {
		return pages.Answer{Class: pages.NoStore, Error: "no store is configured: set the key store in hibernated's file"}, nil, nil
	}
	if len(r.First) > pages.MaxFirst || r.Workload == nil && (r.Op == pages.OpLook || r.Op == pages.OpOpen || r.Op == pages.OpPin) {
		return pages.Answer{}, nil, fmt.Errorf("%w: %s without a workload, or with too long a list", errInvalid, r.Op)
	}
	switch r.Op {
	case pages.OpLook:
		return c.look(*r.Workload, r.Sequence)
	case pages.OpOpen:
		return c.openGeneration(r)
	case pages.OpAttach:
		return c.attach(r)
	case pages.OpPin:
		ctx, cancel := context.WithTimeout(c.ctx, c.opts.OpenWithin)
		defer cancel()
		return pages.Answer{}, nil, c.opts.Store.Keep(ctx, *r.Workload, r.Sequence)
	}
	if c.open == nil {
		return pages.Answer{}, nil, fmt.Errorf("%w: %q, and nothing is open", errInvalid, r.Op)
	}
	switch r.Op {
	case pages.OpExpect:
		c.open.ahead.begin(r.First, r.Ahead)
		return pages.Answer{}, nil, nil
	case pages.OpRead:
		body, err := c.open.read(r.File, r.Offset, r.Length)
		return pages.Answer{}, body, err
	case pages.OpClose:
		c.end(c.open)
		c.leave()
		return pages.Answer{}, nil, nil
	}
	return pages.Answer{}, nil, fmt.Errorf("%w: %q", errInvalid, r.Op)
}

func (c *connection) look(w pages.Workload, sequence uint64) (a pages.Answer, _ []byte, err error) {
	k, err := c.opts.Store.Known(w)
	if err != nil {
		return a, nil, err
	}
	a = pages.Answer{Name: k.Name, Sequence: k.Sequence, Epoch: k.Epoch}
	if sequence != 0 {
		a.Ticket = c.sign(ticket{Workload: w, Sequence: sequence})
	}
	return a, nil, nil
}

func (c *connection) openGeneration(r pages.Request) (a pages.Answer, document []byte, err error) {
	c.leave()
	s, err := c.session(c.ctx, ticket{Workload: *r.Workload, Sequence: r.Sequence})
	if err != nil {
		return a, nil, err
	}
	c.open = s
	s.ahead.begin(r.First, r.Ahead)
	g := s.snapshot.Generation()
	a = pages.Answer{
		Name: s.snapshot.Name(), Sequence: g.Sequence, Epoch: g.Epoch,
		Ticket: c.sign(ticket{Workload: *r.Workload, Sequence: g.Sequence, Manifest: g.Manifest}),
	}
	a.Generations = generations(s.snapshot.Generations())
	return a, s.snapshot.Document(), nil
}

func generations(all []durable.Generation) (out []pages.Generation) {
	for _, g := range all {
		out = append(out, pages.Generation{Sequence: g.Sequence, Epoch: g.Epoch})
	}
	return out
}

func generationsOf(err error) []pages.Generation {
	if e, ok := errors.AsType[*OpenError](err); ok {
		return generations(e.Generations)
	}
	return nil
}

func (c *connection) attach(r pages.Request) (a pages.Answer, _ []byte, err error) {
	t, err := c.verify(r.Ticket)
	if err != nil {
		return a, nil, err
	}
	c.leave()
	if c.open, err = c.session(c.ctx, t); err != nil {
		return a, nil, err
	}
	c.open.ahead.begin(r.First, r.Ahead)
	return a, nil, nil
}

// leave lets go of what the connection has open.
func (c *connection) leave() {
	if c.open != nil {
		c.let(c.open)
		c.open = nil
	}
}

// classOf gives an error its class. What is none of a kind is worth another try.
func classOf(err error) string {
	for _, k := range []struct {
		is    error
		class string
	}{
		{errInvalid, pages.Invalid}, {errTicket, pages.Refused}, {errBusy, pages.Unavailable}, {errTimeout, pages.Unavailable}, {errClosed, pages.Unavailable},
		{durable.ErrNone, pages.None}, {durable.ErrDestroyed, pages.None},
		{durable.ErrForeign, pages.Refused}, {durable.ErrWrongKey, pages.Refused}, {durable.ErrNoKey, pages.Refused}, {durable.ErrRolledBack, pages.Refused},
		{durable.ErrOwned, pages.Refused}, {durable.ErrFenced, pages.Refused}, {durable.ErrDiverged, pages.Refused}, {store.ErrRefused, pages.Refused},
		{snapshot.ErrVersion, pages.Refused}, {snapshot.ErrCorrupt, pages.Corrupt}, {store.ErrNotFound, pages.Corrupt},
	} {
		if errors.Is(err, k.is) {
			return k.class
		}
	}
	return pages.Unavailable
}

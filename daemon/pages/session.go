package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// session is an open generation. snapshot, ahead and err are set when ready is closed.
type session struct {
	server   *Server
	key      key
	ctx      context.Context
	cancel   context.CancelCauseFunc
	ready    chan struct{}
	snapshot Snapshot
	ahead    *ahead
	err      error

	users int         // guarded by Server.mu
	idle  *time.Timer // guarded by Server.mu; nil while there are users

	mu    sync.Mutex // guards files
	files map[string]File
	work  sync.WaitGroup // reads, and what is fetched ahead
}

var (
	errBusy    = errors.New("too many snapshots are open at once: try again in a moment")
	errTimeout = errors.New("the store has not answered in time")
	errClosed  = errors.New("the snapshot was closed")
)

// session gives the one of a ticket, which the caller lets go.
func (s *Server) session(ctx context.Context, t ticket) (*session, error) {
	for {
		one, mine, err := s.enter(ctx, t)
		if err != nil {
			return nil, err
		}
		if mine {
			one.open(t)
		}
		<-one.ready
		switch {
		case one.err != nil:
			s.end(one)
			s.let(one)
			if !mine && ctx.Err() == nil { // it was another's try
				continue
			}
			return nil, one.err
		case t.Manifest != "" && one.snapshot.Generation().Manifest != t.Manifest:
			s.let(one)
			return nil, fmt.Errorf("%w: snapshot %d is another one than that which the ticket is for", durable.ErrForeign, t.Sequence)
		}
		return one, nil
	}
}

// enter finds a session, or begins one, which the caller is to open then. The newest is never found: another may have come.
func (s *Server) enter(ctx context.Context, t ticket) (one *session, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{workload: t.Workload, sequence: t.Sequence}
	if t.Sequence == 0 {
		s.opened++
		k.open = s.opened
	}
	if one = s.sessions[k]; one != nil {
		one.users++
		if one.idle != nil {
			one.idle.Stop()
			one.idle = nil
		}
		return one, false, nil
	}
	if len(s.sessions) >= s.opts.Sessions {
		return nil, false, errBusy
	}
	one = &session{server: s, key: k, ready: make(chan struct{}), users: 1, files: make(map[string]File)}
	one.ctx, one.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.sessions[k] = one
	return one, true, nil
}

// open opens the snapshot, within a limit.
func (o *session) open(t ticket) {
	defer close(o.ready)
	timer := time.AfterFunc(o.server.opts.OpenWithin, func() { o.cancel(errTimeout) })
	o.snapshot, o.err = o.server.opts.Store.Open(o.ctx, t.Workload, t.Sequence)
	if !timer.Stop() && o.err == nil {
		o.snapshot.Close()
		o.err = errTimeout
	}
	if cause := context.Cause(o.ctx); o.err != nil && cause != nil {
		o.err = fmt.Errorf("%w: %w", cause, o.err)
	}
	if o.err != nil {
		return
	}
	o.ahead = newAhead(o)
	o.server.rename(o, o.snapshot.Generation().Sequence)
}

// rename has a session of the newest generation be found by its sequence.
func (s *Server) rename(o *session, sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{workload: o.key.workload, sequence: sequence}
	if s.sessions[k] == nil && s.sessions[o.key] == o {
		delete(s.sessions, o.key)
		o.key = k
		s.sessions[k] = o
	}
}

// let is called by who needs a session no more.
func (s *Server) let(o *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.users--; o.users == 0 && s.sessions[o.key] == o {
		o.idle = time.AfterFunc(s.opts.Linger, func() { s.endIdle(o) })
	}
	if o.users == 0 && s.sessions[o.key] != o {
		s.closing.Go(o.close)
	}
}

func (s *Server) endIdle(o *session) {
	s.mu.Lock()
	over := o.users == 0 && s.sessions[o.key] == o
	if over {
		delete(s.sessions, o.key)
		s.closing.Go(o.close)
	}
	s.mu.Unlock()
}

// end has nobody find a session any more, and ends what is under way in it. It is closed when its last user lets go.
func (s *Server) end(o *session) {
	s.mu.Lock()
	if s.sessions[o.key] == o {
		delete(s.sessions, o.key)
	}
	s.mu.Unlock()
	o.cancel(errClosed)
}

// close frees all. Nobody uses it any more.
func (o *session) close() {
	o.cancel(errClosed)
	<-o.ready
	if o.err != nil {
		return
	}
	o.snapshot.Close()
	o.ahead.close()
	o.work.Wait()
}

// closeAll closes what lingers. There are no connections any more, or they are about to end.
func (s *Server) closeAll() {
	s.mu.Lock()
	all := s.sessions
	s.sessions = make(map[key]*session)
	for _, o := range all {
		o.cancel(errClosed)
		if o.users == 0 {
			s.closing.Go(o.close)
		}
	}
	s.mu.Unlock()
}

// file opens one once.
func (o *session) file(name string) (File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.files[name]; f != nil {
		return f, nil
	}
	f, err := o.snapshot.File(name)
	if err == nil {
		o.files[name] = f
	}
	return f, err
}

// read gives a part of a file, in a buffer that is to be released. Whatever the store does, it ends in time; what it began may not,
// and is bounded by Options.Reads.
func (o *session) read(name string, off int64, length int) ([]byte, error) {
	f, err := o.file(name)
	if err != nil {
		return nil, err
	}
	if length < 1 || length > pages.MaxRead || off < 0 || off > f.Size()-int64(length) {
		return nil, fmt.Errorf("%w: %d bytes at %d of %s, which has %d", errInvalid, length, off, name, f.Size())
	}
	timer := time.NewTimer(o.server.opts.ReadWithin)
	defer timer.Stop()
	if name == pagesFile {
		if data, ok, err := o.ahead.take(off, length, timer.C); ok || err != nil {
			return data, err
		}
	}
	select {
	case o.server.reads <- struct{}{}:
	case <-timer.C:
		return nil, errTimeout
	case <-o.ctx.Done():
		return nil, context.Cause(o.ctx)
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	o.work.Go(func() {
		defer func() { <-o.server.reads }()
		data := buffer(length)
		_, err := f.ReadAt(data, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- result{data, err}
	})
	select {
	case r := <-done:
		return r.data, r.err
	case <-timer.C:
		return nil, errTimeout
	}
}

const pagesFile = "pages.img"

// buffers are of pages.MaxRead bytes.
var buffers = sync.Pool{New: func() any { return new([pages.MaxRead]byte) }}

func buffer(length int) []byte { return buffers.Get().(*[pages.MaxRead]byte)[:length] }

// release gives the buffer of an answer back.
func release(op string, data []byte) {
	if op == pages.OpRead && cap(data) == pages.MaxRead {
		buffers.Put((*[pages.MaxRead]byte)(data[:pages.MaxRead]))
	}
}

package pages

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/pages"
)

// fetchers are at work for a session: each of them waits for the store, or decodes.
const fetchers = 3

// ahead fetches chunks of pages.img before they are asked for.
type ahead struct {
	session *session
	file    File
	room    chan struct{} // a slot for each chunk that is kept

	mu    sync.Mutex // guards the fields below
	queue []int      // to be fetched, in this order; what was asked for meanwhile is left out then
	state []progress // of each chunk
	kept  map[int]*chunk
	busy  int  // fetchers
	over  bool // nothing is kept any more
}

type progress uint8

const (
	waiting progress = iota
	fetched          // or being fetched
	gone             // it was asked for
)

// chunk is one that is being fetched, or was. data and err are set when ready is closed.
type chunk struct {
	ready chan struct{}
	data  []byte
	err   error
}

func newAhead(o *session) *ahead {
	a := &ahead{session: o, room: make(chan struct{}, o.server.opts.AheadEach), kept: make(map[int]*chunk)}
	if f, err := o.file(pagesFile); err == nil {
		a.file = f
		a.state = make([]progress, (f.Size()+pages.MaxRead-1)/pages.MaxRead)
	}
	return a
}

// begin has first be fetched next, and with all the others behind them.
func (a *ahead) begin(first []int, all bool) {
	if a.file == nil || len(first) == 0 && !all {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	was := a.queue
	a.queue = make([]int, 0, len(first)+len(was))
	named := make(map[int]bool, len(first))
	add := func(c int) {
		if c >= 0 && c < len(a.state) && !named[c] && a.state[c] == waiting {
			a.queue, named[c] = append(a.queue, c), true
		}
	}
	for _, c := range first {
		add(c)
	}
	for _, c := range was {
		add(c)
	}
	if all {
		for c := range a.state {
			add(c)
		}
	}
	for ; a.busy < fetchers; a.busy++ {
		a.session.work.Go(a.fetch)
	}
}

// fetch fetches until nothing is left to be.
func (a *ahead) fetch() {
	for a.hold() {
		n, c := a.next()
		if c == nil {
			a.free()
			return
		}
		length := min(pages.MaxRead, a.file.Size()-int64(n)*pages.MaxRead)
		c.data = buffer(int(length))
		if _, c.err = a.file.ReadAt(c.data, int64(n)*pages.MaxRead); errors.Is(c.err, io.EOF) {
			c.err = nil
		}
		close(c.ready)
	}
	a.mu.Lock()
	a.busy--
	a.mu.Unlock()
}

// hold waits for room for one chunk.
func (a *ahead) hold() bool {
	select {
	case a.room <- struct{}{}:
	case <-a.session.ctx.Done():
		return false
	}
	select {
	case a.session.server.budget <- struct{}{}:
		return true
	case <-a.session.ctx.Done():
		<-a.room
		return false
	}
}

func (a *ahead) free() {
	<-a.room
	<-a.session.server.budget
}

// next is the chunk to be fetched; nil: there is none, and the fetcher ends.
func (a *ahead) next() (int, *chunk) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 && !a.over {
		n := a.queue[0]
		a.queue = a.queue[1:]
		if a.state[n] == waiting {
			a.state[n] = fetched
			c := &chunk{ready: make(chan struct{})}
			a.kept[n] = c
			return n, c
		}
	}
	a.busy--
	return 0, nil
}

// take gives a chunk that was fetched, and waits for one that is on its way. ok is false when it is neither: then it won't be fetched
// any more. The buffer is the caller's.
func (a *ahead) take(off int64, length int, late <-chan time.Time) (data []byte, ok bool, err error) {
	if a.file == nil || off%pages.MaxRead != 0 || int64(length) != min(pages.MaxRead, a.file.Size()-off) {
		return nil, false, nil
	}
	n := int(off / pages.MaxRead)
	a.mu.Lock()
	c := a.kept[n]
	delete(a.kept, n)
	a.state[n] = gone
	a.mu.Unlock()
	if c == nil {
		return nil, false, nil
	}
	select {
	case <-c.ready:
	case <-late:
		go func() { <-c.ready; a.free() }() // it ends with the session at the latest
		return nil, false, errTimeout
	case <-a.session.ctx.Done():
		go func() { <-c.ready; a.free() }()
		return nil, false, context.Cause(a.session.ctx)
	}
	a.free()
	if c.err != nil {
		return nil, false, nil // asked for anew, whose error counts
	}
	return c.data, true, nil
}

// close lets go of all that is kept, once it is there.
func (a *ahead) close() {
	a.mu.Lock()
	kept := a.kept
	a.kept, a.over = nil, true
	a.mu.Unlock()
	for _, c := range kept {
		<-c.ready
		a.free()
	}
}

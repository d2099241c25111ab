package gofer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"

	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

const (
	// mostRead is how many bytes one read may have: gVisor looks for who waits only when one has ended.
	mostRead = 512 << 10
	// queued is how many reads are asked for at once for each reader, so that none waits for gVisor to ask.
	queued = 2
)

// maxRanges is how many places of the sandbox's memory one read may fill: twice as many as it has pages.
const maxRanges = 256

// reader implements stateio.AsyncReader over a file that is checked chunk by chunk. A read that can't be served fails as a
// whole, after the shim was told why.
type reader struct {
	file     *pages.Open
	name     string
	chunk    int64 // bytes
	size     int64
	parallel int   // reads served at once
	ahead    []int // chunks to be read before they are asked for
	status   *status
	moved    *atomic.Int64 // bytes handed over
	loaded   func()        // called when the sandbox closes it, having had all that it wanted
	record   *record       // of what it asks for; nil for none

	turns turns
	queue *queue
	cmps  chan stateio.Completion
	wg    sync.WaitGroup
	bad   atomic.Bool
}

type submission struct {
	id  int
	off int64
	n   int64
	to  target
}

func newReader(r *reader) *reader {
	r.queue, r.cmps = newQueue(r.parallel, r.chunk, r.size, r.ahead), make(chan stateio.Completion, r.MaxParallel())
	for range r.parallel {
		r.wg.Go(func() {
			r.queue.work(func(s submission) { r.cmps <- r.serve(s) }, r.file.Ahead)
		})
	}
	return r
}

// serve reads one submission. Nothing of a chunk is handed over before all of it was checked.
func (r *reader) serve(s submission) stateio.Completion {
	done, err := r.file.Each(s.off, s.n, s.to.put)
	r.moved.Add(done)
	if err != nil && !errors.Is(err, io.EOF) {
		r.bad.Store(true)
		r.status.fail(r.name, err)
		err = unix.EIO
	}
	return stateio.Completion{ID: s.id, N: uint64(done), Err: err}
}

// Close implements stateio.AsyncReader.
func (r *reader) Close() error {
	r.queue.close()
	r.wg.Wait()
	if r.loaded != nil && !r.bad.Load() {
		r.loaded()
	}
	return r.file.Close()
}

// MaxReadBytes implements stateio.AsyncReader.
func (r *reader) MaxReadBytes() uint64 { return mostRead }

// MaxRanges implements stateio.AsyncReader.
func (r *reader) MaxRanges() int { return maxRanges }

// MaxParallel implements stateio.AsyncReader.
func (r *reader) MaxParallel() int { return r.parallel * queued }

// NeedRegisterDestinationFD implements stateio.AsyncReader.
func (r *reader) NeedRegisterDestinationFD() bool { return true }

// RegisterDestinationFD implements stateio.AsyncReader.
func (r *reader) RegisterDestinationFD(fd int32, _ uint64, settings []stateio.ClientFileRangeSetting) (stateio.DestinationFile, error) {
	for _, s := range settings {
		if s.Property == stateio.PropertyHugepage {
			return memory{}, nil
		}
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keep the sandbox's memory file: %w", err)
	}
	return memory{file: os.NewFile(uintptr(dup), "memory")}, nil // closed with the process
}

// AddRead implements stateio.AsyncReader.
func (r *reader) AddRead(id int, off int64, to stateio.DestinationFile, at memmap.FileRange, mapped []byte) {
	r.submit(submission{id: id, off: off, n: int64(len(mapped)), to: to.(memory).one(at, mapped)})
}

// AddReadv implements stateio.AsyncReader.
func (r *reader) AddReadv(id int, off int64, total uint64, to stateio.DestinationFile, at []memmap.FileRange, mapped []unix.Iovec) {
	r.submit(submission{id: id, off: off, n: int64(total), to: to.(memory).many(at, mapped)})
}

func (r *reader) submit(s submission) {
	if r.record != nil {
		r.record.add(s.off, s.n)
	}
	r.queue.add(s, r.turns.add(s.off, s.n))
}

// Wait implements stateio.AsyncReader.
func (r *reader) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	return stateio.CompletionChanWait(r.cmps, cs, least)
}

// memory is a memory file of the sandbox's. It is written to by system calls, which take half the time of writing to a
// mapping: no page of it is cleared and mapped first. Where the sandbox wants huge pages there is no file, and the mapping
// is used, which alone has them.
type memory struct{ file *os.File }

func (m memory) one(at memmap.FileRange, mapped []byte) target {
	return target{file: m.file, places: []place{{at: int64(at.Start), mapped: mapped}}}
}

func (m memory) many(at []memmap.FileRange, mapped []unix.Iovec) target {
	t := target{file: m.file, places: make([]place, len(at))}
	for i, r := range at {
		t.places[i] = place{at: int64(r.Start), mapped: unsafe.Slice(mapped[i].Base, mapped[i].Len)}
	}
	return t
}

// target is where the bytes of one read go, in order.
type target struct {
	file   *os.File
	places []place
}

type place struct {
	at     int64 // in the memory file
	mapped []byte
}

// put takes the next bytes.
func (t *target) put(piece []byte) error {
	for len(piece) > 0 {
		p := &t.places[0]
		n := min(len(piece), len(p.mapped))
		if t.file == nil {
			copy(p.mapped, piece[:n])
		} else if _, err := t.file.WriteAt(piece[:n], p.at); err != nil {
			return fmt.Errorf("write to the sandbox's memory: %w", err)
		}
		piece = piece[n:]
		p.at, p.mapped = p.at+int64(n), p.mapped[n:]
		if len(p.mapped) == 0 {
			t.places = t.places[1:]
		}
	}
	return nil
}

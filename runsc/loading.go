package runsc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Loading is a restore in the background: the sandbox runs, and its memory still comes. It begins before the restore:
//
//	l, err := StartLoading(dir, options)
//	err = c.Restore(ctx, id, RestoreOptions{ImagePath: l.Dir(), Background: true, Sidecar: sidecar, …})
//	<-l.Done() // all is there when l.Err() is nil; else gVisor ends the sandbox by SIGKILL, before it sees what is wrong
//	l.Close()
type Loading struct {
	dir    string
	status *os.File      // the sidecar's events
	done   chan struct{} // closed when the load has ended, well or not
	gone   chan struct{} // closed when the sidecar has ended

	mu      sync.Mutex // guards the fields below
	keep    *os.File   // keeps status from its end until the sidecar has opened it; nil afterwards
	pid     *os.File   // pidfd of the sidecar; nil before it runs
	closing bool       // Close was called
	bytes   int64
	err     error
	over    bool // done is closed
	mends   int
	mend    string // the first
}

// LoadError says why memory could not be loaded.
type LoadError struct {
	File    string
	Chunk   int
	Corrupt bool // the bytes are not those that were saved; else they could not be read
	Reason  string
}

func (e *LoadError) Error() string { return "load " + e.File + ": " + e.Reason }

// ErrSidecarEnded: the sidecar was killed, or crashed.
var ErrSidecarEnded = errors.New("the sidecar ended before all memory was loaded")

// errLeft: the sandbox went away first, for reasons of its own.
var errLeft = errors.New("the sandbox ended before all its memory was loaded")

// StartLoading makes dir, the image directory for Restore.
func StartLoading(dir string, o SidecarOptions) (*Loading, error) {
	l := &Loading{dir: dir, done: make(chan struct{}), gone: make(chan struct{})}
	if err := l.open(o); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a restore by the sidecar: %w", err), os.RemoveAll(dir))
	}
	go l.listen()
	return l, nil
}

func (l *Loading) open(o SidecarOptions) error {
	if err := os.RemoveAll(l.dir); err != nil { // of an earlier one
		return err
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(l.dir, "status")
	if err := o.write(l.dir, path); err != nil {
		return err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	var err error
	if l.status, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	if l.keep, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0); err != nil {
		return errors.Join(err, l.status.Close())
	}
	return nil
}

// Dir is the image directory for Restore.
func (l *Loading) Dir() string { return l.dir }

// Done is closed when all is loaded, or will never be.
func (l *Loading) Done() <-chan struct{} { return l.done }

// Err is why not all was loaded: a *LoadError, or ErrSidecarEnded. nil while it goes on, when all is loaded, and when the
// sandbox itself has ended before.
func (l *Loading) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.err, errLeft) {
		return nil
	}
	return l.err
}

// Loaded says whether all is there, and how many bytes were handed over.
func (l *Loading) Loaded() (bytes int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes, l.over && l.err == nil
}

// recordFile is where the sidecar leaves what was asked for out of turn, before it tells that all is loaded.
const recordFile = "touched"

// maxRecord bounds what is taken of it, in bytes: four thousand pairs of numbers.
const maxRecord = 256 << 10

// Read is a part of pages.img that was asked for.
type Read struct{ Off, N int64 } // bytes

// OutOfTurn returns what the sandbox asked for before its turn, because somebody waited for it, in that order: the sidecar's word, not
// checked. It is nothing until all is loaded, after Close, and where the sidecar couldn't tell.
func (l *Loading) OutOfTurn() []Read {
	f, err := os.OpenFile(filepath.Join(l.dir, recordFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	var pairs [][2]int64
	if err != nil || len(data) > maxRecord || json.Unmarshal(data, &pairs) != nil {
		return nil
	}
	reads := make([]Read, len(pairs))
	for i, p := range pairs {
		reads[i] = Read{p[0], p[1]}
	}
	return reads
}

// loadEvent is what the sidecar tells, sidecar/gofer/status.go.
type loadEvent struct {
	Event   string
	Pid     int
	File    string
	Chunk   int
	Corrupt bool
	Reason  string
	Bytes   int64
}

// listen reads the sidecar's events until its end.
func (l *Loading) listen() {
	defer close(l.gone)
	for lines := bufio.NewScanner(l.status); lines.Scan(); {
		var e loadEvent
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Event {
		case "started":
			l.started(e.Pid)
		case "mended":
			l.noteMend(e)
		case "loaded":
			l.finish(e.Bytes, nil)
		case "left":
			l.finish(0, errLeft)
		case "failed":
			l.finish(0, &LoadError{File: e.File, Chunk: e.Chunk, Corrupt: e.Corrupt, Reason: e.Reason})
		}
	}
	l.finish(0, ErrSidecarEnded)
}

// started notes the sidecar, whose end is from now on the end of the events.
func (l *Loading) started(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		l.pid = os.NewFile(uintptr(fd), "sidecar")
		l.killIfClosing()
	}
	l.letGo()
}

// noteMend counts a chunk that was read from elsewhere.
func (l *Loading) noteMend(e loadEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mends++; l.mends == 1 {
		l.mend = e.Reason
	}
}

// Mended tells how many chunks were wrong where they should be, or could not be read, and came from elsewhere, and what was wrong with
// the first.
func (l *Loading) Mended() (chunks int, first string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mends, l.mend
}

// letGo lets the events end with who writes them. The caller holds l.mu.
func (l *Loading) letGo() {
	if l.keep != nil {
		_ = l.keep.Close()
		l.keep = nil
	}
}

// finish notes how the load has ended, once.
func (l *Loading) finish(bytes int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over, l.bytes, l.err = true, bytes, err
		close(l.done)
	}
}

// Abandon has the load end with err, unless it has ended. The caller ends the sandbox.
func (l *Loading) Abandon(err error) { l.finish(0, err) }

// closeWithin is how long a killed process may take to end.
const closeWithin = 5 * time.Second

// Close ends the sidecar if it still runs, and removes the directory. All that it has told is known then. It may be called
// again.
func (l *Loading) Close() error {
	l.mu.Lock()
	l.letGo()
	l.closing = true
	l.killIfClosing()
	l.mu.Unlock()
	err := l.awaitEnd()
	_ = l.status.Close()
	<-l.gone
	l.mu.Lock()
	if l.pid != nil {
		_ = l.pid.Close()
		l.pid = nil
	}
	l.mu.Unlock()
	return errors.Join(err, os.RemoveAll(l.dir))
}

// killIfClosing ends the sidecar, whichever comes last: that it is known, or that it is to end. The caller holds l.mu.
func (l *Loading) killIfClosing() {
	if l.closing && l.pid != nil {
		_ = unix.PidfdSendSignal(int(l.pid.Fd()), unix.SIGKILL, nil, 0) // it may have ended
	}
}

func (l *Loading) awaitEnd() error {
	timer := time.NewTimer(closeWithin)
	defer timer.Stop()
	select {
	case <-l.gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("the sidecar does not end within %v of SIGKILL", closeWithin)
	}
}

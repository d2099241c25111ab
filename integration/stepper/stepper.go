// Package stepper stops a shim within a step of its transitions, in tests.
//
// A *stepper* holds a shim whenever it is about to write a step into its journal: the kernel (fanotify) asks the stepper
// before it lets the shim open the file. So a shim can be met within each step, even one of microseconds, and goes nowhere.
//
//	hold := stepper.Hold(t, filepath.Join(bundle, "hibernate"))
//	… begin a hibernation …
//	hold.Until("checkpoint") // it is in that step, and can't begin another
//	hold.Release()
package stepper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/shim/journal"
)

// patience bounds what is waited for.
const patience = 30 * time.Second

// A Stepper holds one shim.
type Stepper struct {
	*testing.T
	path     string // of the journal
	fanotify int
	asks     chan *ask // the shim's requests
	first    *ask      // one that was taken out of asks
	last     journal.Entry
	ending   sync.Once
	ended    chan struct{}
}

// ask is the shim's request to write its next step.
type ask struct {
	s  *Stepper
	fd int32
}

// Hold begins to hold the shim whose journal is in dir. Release must be called; the test's end does, too.
func Hold(t *testing.T, dir string) *Stepper {
	t.Helper()
	s := &Stepper{T: t, path: filepath.Join(dir, "journal.json"), asks: make(chan *ask, 64), ended: make(chan struct{})}
	var err error
	s.last, err = journal.Read(s.path)
	s.must(err)
	s.fanotify, err = unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	s.must(err)
	s.must(unix.FanotifyMark(s.fanotify, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, dir))
	var loop sync.WaitGroup
	loop.Go(s.loop)
	t.Cleanup(func() { s.Release(); loop.Wait() })
	return s
}

// Until lets the shim go on to the step, which it has then journalled and is in; it can't begin another one. Transitions
// that end before the step are passed over.
func (s *Stepper) Until(step string) {
	s.Helper()
	for s.last.Step != step {
		a := s.next()
		if a == nil {
			s.Fatalf("the shim never came to the step %s; its last was %s", step, s.last.Step)
		}
		a.allow()
		s.written()
	}
}

// Over waits until the step is over, as the shim shows by asking for another. It is held between the two.
func (s *Stepper) Over() {
	s.Helper()
	select {
	case a := <-s.asks:
		s.first = a
	case <-time.After(patience):
		s.Fatalf("the shim does not come to the end of the step %s", s.last.Step)
	}
}

// next is the shim's next request.
func (s *Stepper) next() *ask {
	if a := s.first; a != nil {
		s.first = nil
		return a
	}
	select {
	case a := <-s.asks:
		return a
	case <-time.After(patience):
		return nil
	}
}

// written waits until the step that was allowed is in the journal.
func (s *Stepper) written() {
	s.Helper()
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		if now, err := journal.Read(s.path); err == nil && now != s.last {
			s.last = now
			return
		}
	}
	s.Fatal("the shim does not journal")
}

func (s *Stepper) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Release holds the shim no more.
func (s *Stepper) Release() {
	if a := s.first; a != nil {
		s.first = nil
		a.allow()
	}
	s.ending.Do(func() { close(s.ended) })
}

// loop answers the kernel. Closing its descriptor allows whatever is still asked.
func (s *Stepper) loop() {
	defer unix.Close(s.fanotify)
	buffer := make([]byte, 4096)
	for {
		select {
		case <-s.ended:
			return
		default:
		}
		fds := []unix.PollFd{{Fd: int32(s.fanotify), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 10); err != nil && !errors.Is(err, unix.EINTR) {
			s.Error("fanotify:", err)
			return
		}
		n, err := unix.Read(s.fanotify, buffer)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			s.Error("fanotify:", err)
			return
		}
		s.sort(buffer[:n])
	}
}

// sort puts the shim's writes of the journal forward, and allows all else.
func (s *Stepper) sort(events []byte) {
	const size = int(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	for len(events) >= size {
		e := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&events[0]))
		events = events[e.Event_len:]
		a := &ask{s: s, fd: e.Fd}
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd))
		if err != nil || int(e.Pid) == os.Getpid() || filepath.Base(name) != "journal.json.new" {
			a.allow()
			continue
		}
		select {
		case s.asks <- a:
		case <-s.ended:
			a.allow()
		}
	}
}

func (a *ask) allow() {
	response := unix.FanotifyResponse{Fd: a.fd, Response: unix.FAN_ALLOW}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&response)), unsafe.Sizeof(response))
	if _, err := unix.Write(a.s.fanotify, raw); err != nil && !errors.Is(err, unix.ENOENT) {
		a.s.Error("fanotify:", err)
	}
	unix.Close(int(a.fd))
}

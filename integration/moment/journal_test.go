package moment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/shim/journal"
)

const journalName = "journal.json"

// reader reads a workload's journal as it is written: each entry is there within a fraction of a millisecond, or is
// passed over when the next one is there already.
type reader struct {
	path    string
	notify  *os.File
	entries chan seenEntry // closed at the end
	done    sync.WaitGroup
}

// seenEntry is an entry, and when the reader knew of it.
type seenEntry struct {
	journal.Entry
	seen time.Time
}

// openJournal watches the directory: an entry is a rename.
func openJournal(dir string) (*reader, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init", err)
	}
	r := &reader{path: filepath.Join(dir, journalName), notify: os.NewFile(uintptr(fd), "inotify"), entries: make(chan seenEntry, 1000)}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(os.NewSyscallError("inotify_add_watch", err), r.notify.Close())
	}
	r.done.Go(r.follow)
	return r, nil
}

func (r *reader) follow() {
	defer close(r.entries)
	buf := make([]byte, 64<<10)
	var last journal.Entry
	for {
		n, err := r.notify.Read(buf)
		if err != nil {
			return
		}
		seen := time.Now()
		if !renamed(buf[:n]) {
			continue
		}
		if e, err := journal.Read(r.path); err == nil && e != last {
			last = e
			r.entries <- seenEntry{e, seen}
		}
	}
}

// renamed says whether one of the events is about the journal.
func renamed(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(events[12:])) // struct inotify_event: wd, mask, cookie, len, name
		name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		if string(bytes.TrimRight(name, "\x00")) == journalName {
			return true
		}
		events = events[unix.SizeofInotifyEvent+length:]
	}
	return false
}

func (r *reader) close() {
	r.notify.Close()
	r.done.Wait()
}

// until asks again and again whether something is so.
func until(ctx context.Context, so func() (bool, error)) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := so()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

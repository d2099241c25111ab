package events

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Options of a Log; Dir is required.
type Options struct {
	// Dir is made where it isn't there; root's alone.
	Dir string
	// SegmentBytes is how long a segment grows, Segments how many are kept. Defaults 1 MiB and 32.
	SegmentBytes int64
	Segments     int
	// MaxAge is how long events are kept. Default 30 days.
	MaxAge time.Duration
	Now    func() time.Time
}

// Log is open for one process. Safe for concurrent use.
type Log struct {
	opts Options
	id   string

	mu       sync.Mutex
	segments []segment        // guarded by mu; the last is written
	file     *os.File         // guarded by mu
	dirty    bool             // guarded by mu: something isn't synced
	last     uint64           // guarded by mu
	known    map[string]noted // guarded by mu: the last transition of a workload's kind
	changed  chan struct{}    // guarded by mu; closed by the next event
}

// noted is a transition in the log.
type noted struct {
	id  string
	seq uint64
}

type segment struct {
	first          uint64
	size           int64
	oldest, newest int64 // ms; 0: none
}

func (s *segment) took(e Event) {
	if s.oldest == 0 || e.TimeMs < s.oldest {
		s.oldest = e.TimeMs
	}
	s.newest = max(s.newest, e.TimeMs)
}

const suffix = ".log"

// Open reads what is there, and cuts off what was torn.
func Open(opts Options) (*Log, error) {
	if opts.SegmentBytes <= 0 {
		opts.SegmentBytes = 1 << 20
	}
	if opts.Segments <= 0 {
		opts.Segments = 32
	}
	if opts.MaxAge <= 0 {
		opts.MaxAge = 30 * 24 * time.Hour
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	l := &Log{opts: opts, known: make(map[string]noted), changed: make(chan struct{})}
	if err := errors.Join(os.MkdirAll(opts.Dir, 0o700), l.identify()); err != nil {
		return nil, fmt.Errorf("the log of events: %w", err)
	}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("the log of events: %w", err)
	}
	return l, nil
}

// identify reads the log's id, or makes one.
func (l *Log) identify() error {
	path := filepath.Join(l.opts.Dir, "id")
	text, err := os.ReadFile(path)
	if err == nil && len(bytes.TrimSpace(text)) > 0 {
		l.id = string(bytes.TrimSpace(text))
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l.id = rand.Text()
	return atomicfile.Write(path, []byte(l.id+"\n"), 0o600, atomicfile.Options{Sync: true})
}

func (l *Log) path(first uint64) string {
	return filepath.Join(l.opts.Dir, fmt.Sprintf("%020d%s", first, suffix))
}

func (l *Log) load() error {
	entries, err := os.ReadDir(l.opts.Dir) // sorted, and numbers have one width
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name, is := strings.CutSuffix(entry.Name(), suffix)
		first, err := strconv.ParseUint(name, 10, 64)
		if !is || err != nil {
			continue
		}
		data, err := os.ReadFile(l.path(first))
		if err != nil {
			return err
		}
		s := segment{first: first}
		l.last = max(l.last, first-1)
		s.size = walk(data, func(e Event) bool {
			l.last = e.Seq
			s.took(e)
			l.note(e)
			return true
		})
		if s.size < int64(len(data)) {
			if err := os.Truncate(l.path(first), s.size); err != nil {
				return err
			}
		}
		l.segments = append(l.segments, s)
	}
	if len(l.segments) == 0 {
		return l.rotate()
	}
	l.file, err = os.OpenFile(l.path(l.segments[len(l.segments)-1].first), os.O_WRONLY|os.O_APPEND, 0)
	l.dirty = true // whether an earlier process has synced it isn't known
	return err
}

// walk calls f with the events of a segment until it returns false, and returns where the last whole line ends.
func walk(data []byte, f func(Event) bool) (whole int64) {
	for len(data) > 0 {
		at := bytes.IndexByte(data, '\n')
		if at < 0 {
			return whole
		}
		e, ok := decode(data[:at])
		if !ok || !f(e) {
			return whole
		}
		whole, data = whole+int64(at)+1, data[at+1:]
	}
	return whole
}

// note remembers a transition. l.mu is held, or l is nobody else's yet.
func (l *Log) note(e Event) {
	if e.Transition != "" {
		l.known[knownKey(e.Namespace, e.ID, e.Kind)] = noted{e.Transition, e.Seq}
	}
}

func knownKey(namespace, id, kind string) string { return namespace + "/" + id + " " + kind }

// ID is the log's own, random: numbers count in it.
func (l *Log) ID() string { return l.id }

// Append writes an event under the next number. A transition whose id is that of the workload's last one of its kind is in the log
// already, or was and is too old by now: fresh is false then, and nothing is written. After an error nothing is in the log.
func (l *Log) Append(e Event) (fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Transition != "" && l.known[knownKey(e.Namespace, e.ID, e.Kind)].id == e.Transition {
		return false, nil
	}
	if e.TimeMs == 0 {
		e.TimeMs = l.opts.Now().UnixMilli()
	}
	if e.Transition != "" && l.gone(e.TimeMs) {
		return false, nil
	}
	current := &l.segments[len(l.segments)-1]
	if current.size >= l.opts.SegmentBytes {
		if err := l.rotate(); err != nil {
			return false, err
		}
		current = &l.segments[len(l.segments)-1]
	}
	e.Seq = l.last + 1
	line, err := encode(e)
	if err != nil {
		return false, err
	}
	if _, err := l.file.Write(line); err != nil {
		return false, errors.Join(fmt.Errorf("the log of events: %w", err), l.file.Truncate(current.size))
	}
	current.size += int64(len(line))
	current.took(e)
	l.last, l.dirty = e.Seq, true
	l.note(e)
	close(l.changed)
	l.changed = make(chan struct{})
	return true, nil
}

// gone reports whether what happened then may have been in the log and is no more. l.mu is held.
func (l *Log) gone(ms int64) bool {
	return ms < l.opts.Now().Add(-l.opts.MaxAge).UnixMilli() || l.segments[0].first > 1 && ms < l.segments[0].oldest
}

// rotate begins a segment, and removes the oldest beyond the bounds. l.mu is held.
func (l *Log) rotate() error {
	if err := l.sync(); err != nil {
		return err
	}
	next := segment{first: l.last + 1}
	file, err := os.OpenFile(l.path(next.first), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("the log of events: %w", err)
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file, l.dirty = file, true
	l.segments = append(l.segments, next)
	oldest := l.opts.Now().Add(-l.opts.MaxAge).UnixMilli()
	for len(l.segments) > 1 && (len(l.segments) > l.opts.Segments || l.segments[0].newest < oldest) {
		if err := os.Remove(l.path(l.segments[0].first)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the log of events: %w", err)
		}
		l.segments = l.segments[1:]
	}
	maps.DeleteFunc(l.known, func(_ string, n noted) bool { return n.seq < l.segments[0].first })
	return atomicfile.SyncDir(l.opts.Dir)
}

// sync brings to the disk what was written. l.mu is held.
func (l *Log) sync() error {
	if l.file == nil || !l.dirty {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("the log of events: %w", err)
	}
	l.dirty = false
	return nil
}

// Since returns up to limit events after a number and not before a time (ms), the oldest first, and the cursor that goes on after
// what was looked at. A cursor that is higher than the newest number is another log's: then all is returned.
func (l *Log) Since(after uint64, sinceMs int64, limit int) (all []Event, cursor uint64, err error) {
	l.mu.Lock()
	err = l.sync()
	segments, last := slices.Clone(l.segments), l.last
	l.mu.Unlock()
	if err != nil {
		return nil, after, err
	}
	if after > last {
		after = 0
	}
	for i, s := range segments {
		if i+1 < len(segments) && (segments[i+1].first <= after+1 || s.newest < sinceMs) {
			continue
		}
		data, err := os.ReadFile(l.path(s.first))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was too old meanwhile
		}
		if err != nil {
			return all, after, fmt.Errorf("the log of events: %w", err)
		}
		walk(data[:min(int64(len(data)), s.size)], func(e Event) bool {
			if e.Seq > after && e.TimeMs >= sinceMs {
				all = append(all, e)
			}
			return len(all) < limit
		})
		if len(all) >= limit {
			return all, all[len(all)-1].Seq, nil
		}
	}
	return all, last, nil
}

// Changed returns a channel that is closed by the next event.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Close syncs the log. Nothing may be appended afterwards.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.sync(), l.file.Close())
}

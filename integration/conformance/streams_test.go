package conformance

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func newID() string {
	var b [4]byte
	rand.Read(b[:])
	return "c" + hex.EncodeToString(b[:])
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// A sink collects what a FIFO brings until its end.
type sink struct {
	file *os.File
	done chan struct{} // closed at the end

	mu   sync.Mutex
	data []byte
}

// collect reads a FIFO as containerd does: it opens both ends at first, so that the shim may come later.
func collect(t *testing.T, path string) *sink {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0) // kept until somebody writes: no end before the first byte
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{file: f, done: make(chan struct{})}
	go s.read(writer)
	return s
}

func (s *sink) read(writer *os.File) {
	defer close(s.done)
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.file.Read(buffer)
		s.mu.Lock()
		s.data = append(s.data, buffer[:n]...)
		s.mu.Unlock()
		if n > 0 && writer != nil {
			_ = writer.Close()
			writer = nil
		}
		if err != nil {
			_ = writer.Close()
			return
		}
	}
}

// text is what has come so far.
func (s *sink) text() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data)
}

func (s *sink) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.data)
}

func (s *sink) tail() string {
	text := s.text()
	return text[max(0, len(text)-1000):]
}

// close ends the collection.
func (s *sink) close() {
	if s != nil {
		_ = s.file.Close()
		<-s.done
	}
}

// stream is the path of one of the container's FIFOs.
func (c *container) stream(name string) string { return filepath.Join(c.bundle, name) }

func (c *container) openStreams() {
	c.t.Helper()
	for _, name := range []string{"stdin", "stdout", "stderr", "log"} {
		mkfifo(c.t, c.stream(name))
	}
	c.log = collect(c.t, c.stream("log"))
	if !c.opts.unread {
		c.out, c.errs = collect(c.t, c.stream("stdout")), collect(c.t, c.stream("stderr"))
	}
	if c.opts.stdin {
		c.stdin = c.openInput("stdin")
	}
}

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// openInput opens a FIFO to write to, whether or not somebody reads it yet.
func (c *container) openInput(name string) *os.File {
	c.t.Helper()
	fd, err := unix.Open(c.stream(name), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), name)
}

func (c *container) closeStreams() {
	for _, s := range []*sink{c.out, c.errs, c.log} {
		s.close()
	}
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
}

// say writes to the container's standard input.
func (c *container) say(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, text); err != nil {
		c.t.Fatalf("stdin: %v", err)
	}
}

// hear waits until the output is as wanted.
func (c *container) hear(want string) {
	c.t.Helper()
	eventually(c.t, "the output "+strconv.Quote(want), func() bool { return c.out.text() == want })
}

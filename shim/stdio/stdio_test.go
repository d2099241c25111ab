package stdio

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// streams is a relay over FIFOs, as containerd makes them.
type streams struct {
	*Relay
	t                     *testing.T
	dir                   string
	stdin, stdout, stderr string
	config                Config
}

func newStreams(t *testing.T, change func(*Config)) *streams {
	t.Helper()
	checkLeaks(t)
	dir := t.TempDir()
	s := &streams{t: t, dir: dir, stdin: dir + "/in", stdout: dir + "/out", stderr: dir + "/err"}
	for _, path := range []string{s.stdin, s.stdout, s.stderr} {
		s.must(unix.Mkfifo(path, 0o600))
	}
	s.config = Config{Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Dir: dir}
	if change != nil {
		change(&s.config)
	}
	var err error
	s.Relay, err = Open(t.Context(), s.config)
	s.must(err)
	return s
}

func (s *streams) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *streams) finish() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s.must(s.Finish(ctx))
}

// reader opens one of the FIFOs as containerd would.
func (s *streams) reader(path string) *os.File {
	s.t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	s.must(err)
	return f
}

// checkLeaks compares goroutines and descriptors at the end of the test.
func checkLeaks(t *testing.T) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			g, f := runtime.NumGoroutine(), descriptors(t)
			if g <= goroutines && f <= fds {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines and %d descriptors before, %d and %d after", goroutines, fds, g, f)
			}
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		// The runtime's poller opens its own once, at the first use.
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if !strings.HasPrefix(link, "anon_inode:") {
			n++
		}
	}
	return n
}

func readAll(t *testing.T, f *os.File) <-chan []byte {
	t.Helper()
	out := make(chan []byte, 1)
	go func() {
		data, _ := io.ReadAll(f)
		_ = f.Close()
		out <- data
	}()
	return out
}

// Output of several sandboxes, one after another, reaches one reader whole, and
// its end comes with Finish only.
func TestOutputAcrossSandboxes(t *testing.T) {
	s := newStreams(t, nil)
	got := readAll(t, s.reader(s.stdout))
	for _, part := range []string{"one ", "two ", "three"} {
		_, stdout, _ := s.Files()
		fd, err := unix.Dup(int(stdout.Fd()))
		s.must(err)
		sandbox := os.NewFile(uintptr(fd), "sandbox")
		_, err = sandbox.WriteString(part)
		s.must(err)
		s.must(sandbox.Close())
	}
	s.finish()
	if data := <-got; string(data) != "one two three" {
		t.Errorf("read %q", data)
	}
}

func TestHugeOutputToSlowReader(t *testing.T) {
	s := newStreams(t, nil)
	const size = 8 << 20
	want := sha256.New()
	random := rand.NewChaCha8([32]byte{1})
	written := make(chan error, 1)
	_, stdout, stderr := s.Files()
	go func() {
		_, err := io.CopyN(io.MultiWriter(stdout, want), random, size)
		written <- err
	}()
	// The other stream isn't held up: stdout is full by now, or will be.
	other := readAll(t, s.reader(s.stderr))
	_, err := stderr.WriteString("not blocked")
	s.must(err)

	slow := s.reader(s.stdout)
	got := sha256.New()
	_, err = io.CopyBuffer(struct{ io.Writer }{got}, io.LimitReader(slow, size), make([]byte, 100))
	s.must(err)
	s.must(<-written)
	s.finish()
	if n, err := io.Copy(got, slow); n != 0 || err != nil {
		t.Errorf("%d more bytes, %v", n, err)
	}
	s.must(slow.Close())
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("the bytes differ")
	}
	if data := <-other; string(data) != "not blocked" {
		t.Errorf("stderr is %q", data)
	}
}

// A reader that goes away loses nothing that it has not taken.
func TestReaderComesBack(t *testing.T) {
	s := newStreams(t, nil)
	_, stdout, _ := s.Files()
	first := s.reader(s.stdout)
	_, err := stdout.WriteString("first ")
	s.must(err)
	buf := make([]byte, 100)
	n, err := first.Read(buf)
	s.must(err)
	s.must(first.Close())
	_, err = stdout.WriteString("second")
	s.must(err)
	second := readAll(t, s.reader(s.stdout))
	s.finish()
	if got := string(buf[:n]) + string(<-second); got != "first second" {
		t.Errorf("read %q", got)
	}
}

// Finish keeps the rest for a reader who is not there yet.
func TestFinishWaitsForReader(t *testing.T) {
	s := newStreams(t, nil)
	_, stdout, _ := s.Files()
	_, err := stdout.WriteString("late")
	s.must(err)
	finished := make(chan struct{})
	go func() { s.finish(); close(finished) }()
	select {
	case <-finished:
		t.Error("the output was thrown away")
	case <-time.After(50 * time.Millisecond):
	}
	if data := <-readAll(t, s.reader(s.stdout)); string(data) != "late" {
		t.Errorf("read %q", data)
	}
	<-finished
}

func TestFinishIsBounded(t *testing.T) {
	s := newStreams(t, nil)
	_, stdout, _ := s.Files()
	_, err := stdout.WriteString("nobody reads this")
	s.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Finish(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("finish: %v", err)
	}
}

// Input waits for a client that comes late and goes away, and ends when the
// container's stdin is closed, though the client keeps its end.
func TestInput(t *testing.T) {
	var calls atomic.Int32
	s := newStreams(t, func(c *Config) { c.OnInput = func() { calls.Add(1) } })
	stdin, _, _ := s.Files()
	fd, err := unix.Dup(int(stdin.Fd()))
	s.must(err)
	got := readAll(t, os.NewFile(uintptr(fd), "sandbox"))

	client := func(text string) *os.File {
		f, err := os.OpenFile(s.stdin, os.O_WRONLY, 0)
		s.must(err)
		_, err = f.WriteString(text)
		s.must(err)
		return f
	}
	s.must(client("one ").Close())
	large := strings.Repeat("x", 200_000)
	stays := client(large)
	s.must(s.CloseStdin())
	s.must(s.CloseStdin())
	if data := <-got; string(data) != "one "+large {
		t.Errorf("read %d bytes", len(data))
	}
	if calls.Load() == 0 {
		t.Error("nobody was told of the input")
	}
	s.must(stays.Close())
	s.finish()
}

// A process may end without having read its input, or with a child that still
// holds it.
func TestInputUnread(t *testing.T) {
	s := newStreams(t, nil)
	stdin, _, _ := s.Files()
	fd, err := unix.Dup(int(stdin.Fd()))
	s.must(err)
	defer unix.Close(fd)
	f, err := os.OpenFile(s.stdin, os.O_WRONLY|unix.O_NONBLOCK, 0)
	s.must(err)
	defer f.Close()
	s.must(f.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)))
	_, err = io.Copy(f, rand.NewChaCha8([32]byte{})) // fills FIFO and pipe
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("filling the input: %v", err)
	}
	s.finish()
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	s := newStreams(t, func(c *Config) { *c = Config{Stdout: "file://" + log} })
	stdin, stdout, stderr := s.Files()
	if stdin != nil || stderr != nil {
		t.Error("streams that nobody asked for")
	}
	s.must(os.WriteFile(log, []byte("before "), 0o600))
	_, err := stdout.WriteString("after")
	s.must(err)
	s.finish()
	if data, _ := os.ReadFile(log); string(data) != "before after" {
		t.Errorf("file has %q", data)
	}
}

func TestNoStreams(t *testing.T) {
	s := newStreams(t, func(c *Config) { *c = Config{} })
	if a, b, c := s.Files(); a != nil || b != nil || c != nil {
		t.Error("streams from nothing")
	}
	s.must(s.CloseStdin())
	s.must(s.Resize(80, 25))
	s.finish()
}

func TestBadTargets(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	fifo := dir + "/fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{
		"binary":         {Stdout: "binary:///usr/bin/logger?id=1"},
		"second is bad":  {Stdout: fifo, Stderr: "binary:///x"},
		"input is bad":   {Stdin: dir + "/none", Stdout: fifo},
		"fifo is file":   {Stdout: "fifo://" + dir},
		"missing":        {Stdout: dir + "/none"},
		"bad uri":        {Stdout: "fifo://%zz"},
		"terminal input": {Stdin: dir + "/none", Stdout: fifo, Terminal: true},
	} {
		_, err := Open(t.Context(), c)
		if err == nil {
			t.Errorf("%s: opened", name)
		}
		if binary := strings.Contains(c.Stdout+c.Stderr, "binary:"); binary != errors.Is(err, ErrUnsupportedScheme) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLastUse(t *testing.T) {
	s := newStreams(t, nil)
	past := time.Now().Add(-time.Hour)
	age := func() {
		for _, path := range []string{s.stdin, s.stdout, s.stderr} {
			s.must(os.Chtimes(path, past, past))
		}
		if used := s.LastUse(); !used.Before(past.Add(time.Second)) {
			t.Fatalf("used at %v, want %v", used, past)
		}
	}
	recent := func(what string) {
		if used := s.LastUse(); time.Since(used) > time.Minute {
			t.Errorf("%s leaves it used at %v", what, used)
		}
	}
	_, stdout, stderr := s.Files()
	client, err := os.OpenFile(s.stdin, os.O_WRONLY, 0)
	s.must(err)
	defer client.Close()
	for what, f := range map[string]*os.File{"output": stdout, "an error": stderr, "input": client} {
		age()
		_, err := f.WriteString("x")
		s.must(err)
		recent(what)
	}
	for _, path := range []string{s.stdout, s.stderr} { // so that Finish has nothing to wait for
		f := s.reader(path)
		defer f.Close()
	}
	s.finish()
	if used := s.LastUse(); !used.IsZero() {
		t.Errorf("after the end used at %v", used)
	}
}

package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test's own binary is the logger: binary://…?logger=DIRECTORY&how=WHAT.
func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == "logger" {
		if err := logTo(os.Args[2], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// logTo writes what it was given, and then both streams, into files of dir.
func logTo(dir, how string) error {
	facts := strings.Join(append(os.Environ(), os.Args[1:]...), "\n")
	if err := os.WriteFile(filepath.Join(dir, "facts"), []byte(facts), 0o600); err != nil {
		return err
	}
	switch how {
	case "crash":
		return errors.New("as told")
	case "never-ready":
		time.Sleep(time.Hour) // a select would be taken for a deadlock
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
	}
	ready := os.NewFile(5, "ready")
	if how != "legacy" {
		if _, err := ready.Write([]byte{1}); err != nil {
			return err
		}
	}
	if err := ready.Close(); err != nil {
		return err
	}
	var copies sync.WaitGroup
	for fd, name := range map[uintptr]string{3: "stdout", 4: "stderr"} {
		copies.Go(func() {
			f, err := os.Create(filepath.Join(dir, name))
			if err == nil {
				_, _ = io.Copy(f, os.NewFile(fd, name))
			}
		})
	}
	copies.Wait()
	if how == "deaf" {
		time.Sleep(time.Hour)
	}
	return os.WriteFile(filepath.Join(dir, "end"), nil, 0o600)
}

// logged is a relay with a logger, and what that has written.
func newLogged(t *testing.T, scheme, how string, change func(*Config)) (*streams, string) {
	t.Helper()
	dir := t.TempDir()
	s := newStreams(t, func(c *Config) {
		c.Stdout = loggerURI(scheme, dir, how)
		c.Stderr, c.Stdin, c.ID, c.Namespace, c.Start = c.Stdout, "", "web", "default", startProgram
		if change != nil {
			change(c)
		}
	})
	return s, dir
}

func loggerURI(scheme, dir, how string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return scheme + "://" + self + "?logger=" + dir + "&how=" + how
}

func startProgram(cmd *exec.Cmd) (<-chan struct{}, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	return ended, nil
}

func (s *streams) content(path string) string {
	s.t.Helper()
	data, err := os.ReadFile(path)
	s.must(err)
	return string(data)
}

// One logger serves sandbox after sandbox; what comes while there is none, and
// what came last, is not lost, and nothing comes twice.
func TestLogger(t *testing.T) {
	for _, scheme := range []string{"binary", "binary-v2"} {
		how := map[string]string{"binary": "legacy", "binary-v2": "new"}[scheme]
		s, dir := newLogged(t, scheme, how, nil)
		facts := strings.Split(s.content(dir+"/facts"), "\n")
		want := []string{"CONTAINER_ID=web", "CONTAINER_NAMESPACE=default", "logger", dir, "how", how}
		if !slices.Equal(facts, want) {
			t.Errorf("%s: given %q, want %q", scheme, facts, want)
		}
		_, stdout, stderr := s.Files()
		var said, complained bytes.Buffer
		for sandbox := range 5 {
			for _, end := range []struct {
				f   *os.File
				all *bytes.Buffer
			}{{stdout, &said}, {stderr, &complained}} {
				fd, err := unix.Dup(int(end.f.Fd())) // a sandbox has ends of its own, and takes them with it
				s.must(err)
				own := os.NewFile(uintptr(fd), "sandbox")
				text := strings.Repeat(fmt.Sprintf("%s %d\n", end.f.Name(), sandbox), 20_000)
				_, err = own.WriteString(text)
				s.must(err)
				s.must(own.Close())
				end.all.WriteString(text)
			}
		}
		s.finish()
		if got := s.content(dir + "/stdout"); got != said.String() {
			t.Errorf("%s: stdout has %d bytes, want %d", scheme, len(got), said.Len())
		}
		if got := s.content(dir + "/stderr"); got != complained.String() {
			t.Errorf("%s: stderr has %d bytes, want %d", scheme, len(got), complained.Len())
		}
		s.content(dir + "/end") // Finish has waited for it
	}
}

func TestLoggerOfTerminal(t *testing.T) {
	s, dir := newLogged(t, "binary", "new", func(c *Config) { c.Terminal = true })
	s.must(s.shell("echo hello; echo again").Wait())
	s.finish()
	if got := s.content(dir + "/stdout"); got != "hello\r\nagain\r\n" {
		t.Errorf("logged %q", got)
	}
}

// A dead logger is the container's broken pipe, and no more.
func TestDeadLogger(t *testing.T) {
	s, _ := newLogged(t, "binary-v2", "new", nil)
	s.must(s.logger.process.Kill())
	<-s.logger.ended
	_, stdout, _ := s.Files()
	if _, err := unix.Write(int(stdout.Fd()), []byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write: %v", err)
	}
	s.finish()
}

func TestBadLoggers(t *testing.T) {
	checkLeaks(t)
	for name, c := range map[string]Config{
		"crashes":    {Stdout: loggerURI("binary-v2", t.TempDir(), "crash")},
		"not there":  {Stdout: "binary:///does/not/exist"},
		"relative":   {Stdout: "binary://logger"},
		"bad escape": {Stdout: "binary:///%zz"},
	} {
		c.Start = startProgram
		if _, err := Open(t.Context(), c); err == nil || name == "not there" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, Config{Stdout: loggerURI("binary", t.TempDir(), "never-ready"), Start: startProgram})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("never ready: %v", err)
	}
}

// A logger that neither its input's end nor SIGTERM ends is killed.
func TestDeafLogger(t *testing.T) {
	s, dir := newLogged(t, "binary", "deaf", nil)
	_, stdout, _ := s.Files()
	_, err := stdout.WriteString("last words")
	s.must(err)
	s.logger.grace = 100 * time.Millisecond
	if err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("finish: %v", err)
	}
	if got := s.content(dir + "/stdout"); got != "last words" {
		t.Errorf("logged %q", got)
	}
}

func TestArguments(t *testing.T) {
	for query, want := range map[string][]string{
		"":                  nil,
		"b=2&a=1":           {"b", "2", "a", "1"},
		"flag":              {"flag", ""},
		"a=1&a=2&a%20b=c+d": {"a", "1", "a b", "c d"},
		"%zz=1&ok=%2F":      {"ok", "/"},
	} {
		if got := arguments(query); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

// Both outputs of a file are one, written by sandbox after sandbox at its end.
func TestFileOfBoth(t *testing.T) {
	log := filepath.Join(t.TempDir(), "new", "log")
	s := newStreams(t, func(c *Config) { *c = Config{Stdout: "file://" + log, Stderr: "file:///elsewhere"} })
	_, stdout, stderr := s.Files()
	for _, f := range []*os.File{stdout, stderr, stdout} {
		_, err := f.WriteString("one\n")
		s.must(err)
	}
	s.must(os.Truncate(log, 0)) // rotated
	_, err := stdout.WriteString("two\n")
	s.must(err)
	s.finish()
	if got := s.content(log); got != "two\n" {
		t.Errorf("the file has %q", got)
	}
}

package stdio

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

// pty does what runsc does with --console-socket, and gives the other end.
func (s *streams) pty() *os.File {
	s.t.Helper()
	master, path, err := console.NewPty()
	s.must(err)
	tty, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	s.must(err)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.ConsoleSocket(), Net: "unix"})
	s.must(err)
	_, _, err = conn.WriteMsgUnix([]byte(path), unix.UnixRights(int(master.Fd())), nil)
	s.must(err)
	s.must(conn.Close())
	s.must(master.Close())
	return tty
}

func (s *streams) shell(script string) *exec.Cmd {
	s.t.Helper()
	tty := s.pty()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s.must(cmd.Start())
	s.must(tty.Close())
	return cmd
}

func asTerminal(c *Config) { c.Terminal, c.Stderr = true, "" }

func TestTerminal(t *testing.T) {
	s := newStreams(t, asTerminal)
	if a, b, c := s.Files(); a != nil || b != nil || c != nil {
		t.Error("a terminal has no files")
	}
	s.must(s.Resize(91, 17)) // before there is a pty
	cmd := s.shell(`until [ "$(stty size)" = "17 91" ]; do :; done; stty size; read line; echo "got $line"; stty size; i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done`)
	r := s.reader(s.stdout)
	defer r.Close()
	lines := bufio.NewScanner(r)
	next := func() string { lines.Scan(); return strings.TrimSpace(lines.Text()) }
	if got := next(); got != "17 91" {
		t.Errorf("size is %q", got)
	}
	s.must(s.Resize(92, 18))
	client, err := os.OpenFile(s.stdin, os.O_WRONLY, 0)
	s.must(err)
	_, err = client.WriteString("hello\n")
	s.must(err)
	for _, want := range []string{"hello", "got hello", "18 92"} {
		if got := next(); got != want {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	finished := make(chan struct{})
	go func() { _ = cmd.Wait(); s.finish(); close(finished) }()
	n := 0
	for lines.Scan() {
		n++
	}
	if n != 20000 {
		t.Errorf("%d lines of 20000", n)
	}
	<-finished
	s.must(client.Close())
}

// Neither a terminal that never comes nor one that never goes holds Finish up.
func TestTerminalFinishIsBounded(t *testing.T) {
	s := newStreams(t, asTerminal)
	s.finish()

	s = newStreams(t, asTerminal)
	tty := s.pty()
	defer tty.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_ = s.Finish(ctx)
	if _, err := os.Stat(s.ConsoleSocket()); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// Output to a full FIFO that nobody reads must not hold Finish up either.
func TestTerminalUnread(t *testing.T) {
	s := newStreams(t, asTerminal)
	cmd := s.shell(`while :; do echo 0123456789; done`)
	_, _ = unix.Wait4(cmd.Process.Pid, nil, unix.WNOHANG, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Finish(ctx); err == nil {
		t.Error("finish said that unread output was read")
	}
	s.must(cmd.Process.Kill())
	_ = cmd.Wait()
}

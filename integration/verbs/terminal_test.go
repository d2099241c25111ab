package verbs

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// session is a ctr on a terminal of its own.
type session struct {
	*exec.Cmd
	screen output
	keys   console.Console
	done   chan error
}

// dial starts ctr with a pty for its terminal, 100 columns by 40 rows.
func (n *node) dial(args ...string) *session {
	n.t.Helper()
	master, path, err := console.NewPty()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := master.Resize(console.WinSize{Width: 100, Height: 40}); err != nil {
		n.t.Fatal(err)
	}
	s := &session{Cmd: n.client(n.context(), args...), keys: master, done: make(chan error, 1)}
	if err := s.open(path); err != nil {
		n.t.Fatal(err)
	}
	go func() { io.Copy(&s.screen, master) }() // ends with the terminal
	go func() { s.done <- s.Wait(); master.Close() }()
	return s
}

// open starts the program as the leader of a session on the terminal.
func (s *session) open(path string) error {
	tty, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	s.Stdin, s.Stdout, s.Stderr = tty, tty, tty
	s.SysProcAttr.Setsid, s.SysProcAttr.Setctty, s.SysProcAttr.Ctty = true, true, 0
	s.SysProcAttr.Setpgid = false // a session's leader leads its group already
	return s.Start()
}

func (s *session) types(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.keys, text); err != nil {
		t.Fatal(err)
	}
}

func (n *node) shows(s *session, text string) {
	n.t.Helper()
	n.until("the screen shows "+text, func() (bool, string) { return s.screen.has(text), s.screen.String() })
}

// sized waits until the program sees the terminal's size, as rows and columns.
func (n *node) sized(s *session, size string) {
	n.t.Helper()
	n.until("the size is "+size, func() (bool, string) {
		s.types(n.t, "stty size\n")
		time.Sleep(50 * time.Millisecond) // or the screen fills with the question
		return s.screen.has(size), s.screen.String()
	})
}

func testTerminal(t *testing.T, n *node) {
	n.imported("testserver")
	c := harness.Container{ID: "tty", Image: "testserver", Args: []string{"sh"}, Flags: []string{"--tty", "--rm"}}
	s := n.dial(n.RunArgs(c)...)
	s.types(t, "echo wo''rd\n")
	n.shows(s, "word")
	n.sized(s, "40 100") // ctr sets the size when the program runs already
	if _, err := n.Hibernate(n.context(), "tty"); err == nil || !strings.Contains(err.Error(), "[terminal]") {
		t.Errorf("hibernation with a terminal: %v", err)
	}
	if err := s.keys.Resize(console.WinSize{Width: 120, Height: 50}); err != nil {
		t.Fatal(err)
	}
	if err := s.Process.Signal(syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	n.sized(s, "50 120")
	s.types(t, "echo beg''ins; sleep 1000\n")
	n.shows(s, "begins")
	n.until("Ctrl-C ends what runs: the screen shows status 130", func() (bool, string) { // the shell may not have begun it yet
		s.types(t, "\x03")
		time.Sleep(50 * time.Millisecond)
		s.types(t, "echo st''atus $?\n")
		time.Sleep(50 * time.Millisecond)
		return s.screen.has("status 130"), s.screen.String()
	})
	s.types(t, "exit 11\n")
	if code := status(t, <-s.done); code != 11 {
		t.Errorf("status %d; screen:\n%s", code, s.screen.String())
	}
}

// A terminal of an exec keeps its container awake while it is there.
func testTerminalOfExec(t *testing.T, n *node) {
	n.serve(harness.Container{ID: "a"}).rest()
	n.sleep("a")
	s := n.dial("tasks", "exec", "--tty", "--exec-id", "shell", "a", "sh")
	s.types(t, "echo wo''rd\n")
	n.shows(s, "word")
	if _, err := n.Hibernate(n.context(), "a"); err == nil || !strings.Contains(err.Error(), "[exec]") {
		t.Errorf("hibernation beside a shell: %v", err)
	}
	s.types(t, "exit 12\n")
	if code := status(t, <-s.done); code != 12 {
		t.Errorf("status %d; screen:\n%s", code, s.screen.String())
	}
	n.sleep("a")
}

package manager

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

func TestInfo(t *testing.T) {
	out, err := exec.Command(binary, "-info").Output()
	if err != nil {
		t.Fatal(err)
	}
	var info types.RuntimeInfo
	if err := proto.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	if info.Name != "io.containerd.hibernate.v1" || info.Version.GetVersion() != "1.2.3" || info.Version.GetRevision() != "abc" {
		t.Errorf("info = %v", &info)
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"-v", "-version", "--version"} {
		out, err := exec.Command(binary, arg).Output()
		if err != nil || !strings.Contains(string(out), "1.2.3") || !strings.HasPrefix(string(out), "containerd-shim-hibernate-v1:\n") {
			t.Errorf("%s: %q, %v", arg, out, err)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"start"}, {"-namespace", "x", "-id", "y", "stop"}, {"-colour"}} {
		out, err := exec.Command(binary, args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(string(out), "io.containerd.hibernate.v1: ") {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
}

func TestDelete(t *testing.T) {
	b := newBundle(t, nil)
	var answers [][]byte
	for range 2 { // it is idempotent
		begun := time.Now()
		r := b.call(nil, "-bundle", b.dir, "delete")
		if r.err != nil || len(r.stderr) > 0 {
			t.Fatalf("delete: %v, stderr %q", r.err, r.stderr)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("delete took %s", took)
		}
		answers = append(answers, r.stdout)
	}
	var resp taskv3.DeleteResponse
	if err := proto.Unmarshal(answers[0], &resp); err != nil {
		t.Fatal(err)
	}
	if resp.ExitStatus != 137 || resp.Pid != 42 || resp.ExitedAt.AsTime().Unix() != 1 || !bytes.Equal(answers[0], answers[1]) {
		t.Errorf("answers %v and %x", &resp, answers[1])
	}
}

func TestDeleteRemovesOnlyAStaleSocket(t *testing.T) {
	b := newBundle(t, nil)
	a := bootstrapped(t, b.start(params(t, b, b.id)))
	socket := strings.TrimPrefix(a.address, "unix://")
	if r := b.call(nil, "-bundle", b.dir, "delete"); r.err != nil {
		t.Fatalf("delete: %v %s", r.err, r.stderr)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the socket of a daemon that lives: %v", err)
	}
	if err := unix.Kill(b.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.waitEnd()
	if r := b.call(nil, "-bundle", b.dir, "delete"); r.err != nil {
		t.Fatalf("delete: %v %s", r.err, r.stderr)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket of a killed daemon is left: %v", err)
	}
}

func TestDaemonLogsToTheFifo(t *testing.T) {
	b := newBundle(t, nil)
	path := filepath.Join(b.dir, logFifo)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// No reader yet: the daemon must not wait for one.
	r := b.call(params(t, b, b.id), "-debug", "start")
	if r.err != nil || len(r.stderr) > 0 {
		t.Fatalf("start: %v, stderr %q", r.err, r.stderr)
	}
	a := bootstrapped(t, r.stdout)
	dial(t, a.address)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var got []byte
	eventually(t, "a line of the daemon's log", func() bool {
		buf := make([]byte, 4096)
		if n, err := unix.Read(fd, buf); err == nil {
			got = append(got, buf[:n]...)
		}
		return bytes.Contains(got, []byte("level=debug"))
	})
	checkDaemon(t, b, a)
}

func TestFifoWriterDropsAndTells(t *testing.T) {
	var out bytes.Buffer
	full := true
	w := &fifoWriter{write: func(p []byte) (int, error) {
		if full {
			return 0, unix.EAGAIN
		}
		return out.Write(p)
	}}
	for _, line := range []string{"a\n", "b\n"} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	full = false
	for _, line := range []string{"c\n", "d\n"} {
		_, _ = w.Write([]byte(line))
	}
	if got := out.String(); !strings.Contains(got, "2 log entries dropped") || !strings.HasSuffix(got, "\nc\nd\n") {
		t.Errorf("written %q", got)
	}
}

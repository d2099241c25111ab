package runsc

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The life of a container that sleeps twice: its counter goes on, on the same
// pipe, and the statuses are those of its init.
func TestSleepAndWake(t *testing.T) {
	b := newBox(t, "count")
	r, w, err := os.Pipe()
	b.must(err)
	defer r.Close()
	defer w.Close()
	lines := bufio.NewScanner(r)
	next := func() int {
		if !lines.Scan() {
			t.Fatal("the container's output ended")
		}
		n, err := strconv.Atoi(lines.Text())
		b.must(err)
		return n
	}

	b.create(IO{Stdout: w})
	b.must(b.Start(b.ctx, b.id))
	if n := next(); n != 0 {
		t.Fatalf("first line is %d", n)
	}
	last := 0
	for range 2 {
		image := b.image()
		pid := b.create(IO{Stdout: w})
		b.must(b.Restore(b.ctx, b.id, RestoreOptions{Bundle: b.bundle, ImagePath: image}))
		b.must(os.RemoveAll(image))
		for range 50 {
			if n := next(); n != last+1 {
				t.Fatalf("line %d follows %d", n, last)
			}
			last++
		}
		if s, err := b.State(b.ctx, b.id); err != nil || s.Status != Running || s.Pid != pid || s.Bundle != b.bundle {
			t.Fatalf("state %+v, %v; sandbox pid %d", s, err, pid)
		}
	}
}

func TestDeleteWithoutItsFilestore(t *testing.T) {
	b := newBox(t, "sleep")
	pid := b.run()
	b.loseFilestore()
	b.must(b.Delete(b.ctx, b.id, true))
	if got := b.status(pid); got != 128+9 {
		t.Errorf("the sandbox has ended with %d", got)
	}
	if _, err := b.State(b.ctx, b.id); !errors.Is(err, ErrNotFound) {
		t.Errorf("runsc still knows it: %v", err)
	}
}

func TestExitStatusOfSandboxIsThatOfInit(t *testing.T) {
	b := newBox(t, "exit", "7")
	if got := b.status(b.run()); got != 7 {
		t.Errorf("exit 7: sandbox ended with %d", got)
	}
	b.must(b.Delete(b.ctx, b.id, true))

	b.writeSpec(func(*specs.Spec) {}, "sleep")
	pid := b.run()
	b.must(b.Kill(b.ctx, b.id, KillOptions{Signal: 15}))
	if got := b.status(pid); got != 128+15 {
		t.Errorf("SIGTERM: sandbox ended with %d", got)
	}
	b.must(b.Delete(b.ctx, b.id, false))
}

func TestExec(t *testing.T) {
	b := newBox(t, "sleep")
	b.run()
	r, w, err := os.Pipe()
	b.must(err)
	defer r.Close()

	process := &specs.Process{Args: []string{"/init", "exit", "9"}, Cwd: "/"}
	pid, err := b.Exec(b.ctx, b.id, ExecOptions{Process: process, IO: IO{Stdin: r}})
	b.must(err)
	ps, err := b.Processes(b.ctx, b.id)
	b.must(err)
	if len(ps) != 2 || ps[1].Pid != pid {
		t.Errorf("processes %v, exec has pid %d", ps, pid)
	}
	b.must(w.Close())
	if status, err := b.WaitExec(b.ctx, b.id, pid); status != 9 || err != nil {
		t.Errorf("exec ended with %d, %v", status, err)
	}

	process.Args = []string{"/init", "sleep"}
	pid, err = b.Exec(b.ctx, b.id, ExecOptions{Process: process})
	b.must(err)
	b.must(b.Kill(b.ctx, b.id, KillOptions{Signal: 9, Pid: pid}))
	if status, err := b.WaitExec(b.ctx, b.id, pid); status != 137 || err != nil {
		t.Errorf("killed exec ended with %d, %v", status, err)
	}

	process.Args = []string{"/none"}
	if _, err = b.Exec(b.ctx, b.id, ExecOptions{Process: process}); err == nil {
		t.Error("an exec of nothing started")
	} else {
		t.Log(err)
	}
}

// A sandbox is paused by its tasks, not by what is noted; a single process that is stopped doesn't count.
func TestPaused(t *testing.T) {
	b := newBox(t, "sleep")
	b.run()
	is := func(want bool) {
		t.Helper()
		if got, err := b.Paused(b.ctx, b.id); got != want || err != nil {
			t.Errorf("paused is %v, %v, want %v", got, err, want)
		}
	}
	is(false)
	r, w, err := os.Pipe()
	b.must(err)
	defer r.Close()
	defer w.Close()
	pid, err := b.Exec(b.ctx, b.id, ExecOptions{Process: &specs.Process{Args: []string{"/init", "exit", "9"}, Cwd: "/"}, IO: IO{Stdin: r}})
	b.must(err)
	b.must(b.Kill(b.ctx, b.id, KillOptions{Signal: syscall.SIGSTOP, Pid: pid}))
	is(false)
	b.must(b.Pause(b.ctx, b.id))
	is(true)
	b.must(b.Resume(b.ctx, b.id))
	is(false)
}

func TestSockets(t *testing.T) {
	b := newBox(t, "listen")
	r, w, err := os.Pipe()
	b.must(err)
	defer r.Close()
	b.create(IO{Stdout: w})
	b.must(w.Close())
	b.must(b.Start(b.ctx, b.id))
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "listening\n" {
		t.Fatalf("init said %q, %v", line, err)
	}
	helper, err := os.Open(built(t, "../cmd/hibernate-helper"))
	b.must(err)
	defer helper.Close()
	begin := time.Now()
	got, err := b.Sockets(b.ctx, b.id, helper)
	b.must(err)
	t.Logf("learnt in %v", time.Since(begin))
	want := []string{"tcp 0.0.0.0 80", "tcp 0.0.0.0 8080", "udp 0.0.0.0 53"}
	var lines []string
	for _, s := range got {
		lines = append(lines, s.Proto+" "+s.Addr.String()+" "+strconv.Itoa(int(s.Port)))
	}
	slices.Sort(lines) // gVisor lists them in any order
	if !slices.Equal(lines, want) {
		t.Errorf("sockets %q, want %q", lines, want)
	}
}

func TestBinary(t *testing.T) {
	b := newBox(t, "sleep")
	b.CacheDir = b.dir
	version, err := b.Version(b.ctx)
	b.must(err)
	features, err := b.CPUFeatures(b.ctx)
	b.must(err)
	sum, err := b.Digest()
	b.must(err)
	if version == "" || len(features) < 10 || len(sum) != 64 {
		t.Errorf("version %q, features %v, digest %q", version, features, sum)
	}
	other := &Client{Path: b.Path, CacheDir: b.dir}
	if again, err := other.Digest(); again != sum || err != nil {
		t.Errorf("cached digest %q, %v", again, err)
	}
	if files, _ := filepath.Glob(b.LogDir + "/*"); len(files) != 0 {
		t.Errorf("successful calls left %v", files)
	}
}

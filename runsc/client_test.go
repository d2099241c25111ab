package runsc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recorder is a Runner that runs nothing.
type recorder struct {
	args []string
	err  error
}

func (r *recorder) Run(_ context.Context, cmd *exec.Cmd) error {
	r.args = cmd.Args
	return r.err
}

// Each method gives one command line: global flags, command, its flags, id.
func TestCommandLines(t *testing.T) {
	r := &recorder{}
	c := &Client{Path: "runsc", Root: "/root", Flags: []string{"--a", "--b"}, LogDir: t.TempDir(), Runner: r}
	ctx := t.Context()
	for want, do := range map[string]func() error{
		"create --bundle=/b --pid-file=/p c": func() error { return c.Create(ctx, "c", CreateOptions{Bundle: "/b", PidFile: "/p"}) },
		"create --bundle=/b --console-socket=/s c": func() error {
			return c.Create(ctx, "c", CreateOptions{Bundle: "/b", ConsoleSocket: "/s"})
		},
		"start c": func() error { return c.Start(ctx, "c") },
		"restore --detach --image-path=/i --bundle=/b --background --direct c": func() error {
			return c.Restore(ctx, "c", RestoreOptions{Bundle: "/b", ImagePath: "/i", Background: true, Direct: true})
		},
		"checkpoint --leave-running --image-path=/i --exclude-committed-zero-pages c": func() error {
			return c.Checkpoint(ctx, "c", CheckpointOptions{ImagePath: "/i", ExcludeZeroPages: true})
		},
		"pause c":  func() error { return c.Pause(ctx, "c") },
		"resume c": func() error { return c.Resume(ctx, "c") },
		"kill --all c 9": func() error {
			return c.Kill(ctx, "c", KillOptions{Signal: syscall.SIGKILL, All: true})
		},
		"kill --pid=3 c 15": func() error { return c.Kill(ctx, "c", KillOptions{Signal: syscall.SIGTERM, Pid: 3}) },
		"delete --force c":  func() error { return c.Delete(ctx, "c", true) },
		"delete c":          func() error { return c.Delete(ctx, "c", false) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if r.args[0] != "runsc" || r.args[1] != "--root=/root" || !strings.HasPrefix(r.args[2], "--log="+c.LogDir) ||
			!slices.Equal(r.args[3:6], []string{"--log-format=json", "--a", "--b"}) {
			t.Errorf("global flags are %v", r.args[:6])
		}
		if got := strings.Join(r.args[6:], " "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if left, _ := filepath.Glob(c.LogDir + "/*"); len(left) != 0 {
		t.Errorf("logs left: %v", left)
	}
}

// script is a runsc that does what a test wants.
func script(t *testing.T, body string) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Client{Path: path, Root: t.TempDir(), LogDir: t.TempDir()}
}

func TestDeadlineKillsRunsc(t *testing.T) {
	c := script(t, "exec sleep 1000")
	c.Timeouts.Control = 20 * time.Millisecond
	err := c.Pause(t.Context(), "c")
	if !errors.Is(err, ErrDeadline) {
		t.Errorf("own deadline: %v", err)
	}
	c.Timeouts.Control = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Pause(ctx, "c"); !errors.Is(err, ErrDeadline) {
		t.Errorf("the caller's deadline: %v", err)
	}
	gone := errors.New("the lease is lost")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(gone)
	if err := c.Pause(ctx, "c"); !errors.Is(err, gone) {
		t.Errorf("the caller's cause: %v", err)
	}
}

// A failure without a log line tells what stood on standard error, and its
// status; one with a log line keeps the log.
func TestFailureText(t *testing.T) {
	err := script(t, "echo oh no >&2; echo more >&2; exit 3").Pause(t.Context(), "c")
	var e *Error
	if !errors.As(err, &e) || e.Code != 3 || err.Error() != "runsc pause c: oh no" {
		t.Errorf("%#v", err)
	}
	err = script(t, "exit 4").Pause(t.Context(), "c")
	if !errors.As(err, &e) || e.Code != 4 || e.Log != "" || err.Error() != "runsc pause c: exit status 4" {
		t.Errorf("%#v", err)
	}
	err = script(t, "kill -9 $$").Pause(t.Context(), "c")
	if !errors.As(err, &e) || e.Code != 137 {
		t.Errorf("%#v", err)
	}
}

// A force-deleted container that isn't there, and a killed one whose sandbox
// ends while it answers, are what was asked for.
func TestForgivenErrors(t *testing.T) {
	c := script(t, `echo 'loading container: file does not exist' >&2; exit 128`)
	if err := c.Delete(t.Context(), "c", true); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), "c", false); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	again := filepath.Join(t.TempDir(), "again")
	gone := `echo 'destroying container: failed to delete filestore file "/r/.gvisor.filestore.c": remove /r/.gvisor.filestore.c: no such file or directory' >&2; exit 128`
	c = script(t, "[ -e "+again+" ] && exit 0; touch "+again+"; "+gone)
	if err := c.Delete(t.Context(), "c", true); err != nil {
		t.Error(err)
	}
	c = script(t, gone)
	for _, force := range []bool{false, true} { // it stays so
		if err := c.Delete(t.Context(), "c", force); !errors.Is(err, ErrFilestore) {
			t.Error(err)
		}
	}
	c = script(t, `echo 'urpc method "containerManager.Signal" failed: EOF' >&2; exit 128`)
	if err := c.Kill(t.Context(), "c", KillOptions{Signal: 9}); err != nil {
		t.Error(err)
	}
}

func TestParseSockets(t *testing.T) {
	got, err := parseSockets(strings.NewReader("{\"proto\":\"udp\",\"addr\":\"::\",\"port\":53}\n"))
	if err != nil || len(got) != 1 || got[0].Proto != "udp" || !got[0].Addr.IsUnspecified() || got[0].Port != 53 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"oops", `{"proto":"tcp","addr":"x","port":1}`, `{"port":70000}`} {
		if _, err := parseSockets(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestTimeoutsMost(t *testing.T) {
	var none Timeouts
	if got := none.checkpoint(); got != 5*time.Minute {
		t.Errorf("unset, a checkpoint has %v", got)
	}
	bounded := Timeouts{Create: time.Minute, Most: 15 * time.Second}
	for name, c := range map[string]struct{ got, want time.Duration }{
		"default above it": {bounded.checkpoint(), 15 * time.Second},
		"field above it":   {bounded.create(), 15 * time.Second},
		"below it":         {bounded.control(), 10 * time.Second},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

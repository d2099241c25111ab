package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sandboxOf is a control server that answers each call as the test says, at a path that is longer than an address can be.
func sandboxOf(t *testing.T, answer func(method, arg string) (string, bool)) (*Client, string) {
	t.Helper()
	id := strings.Repeat("s", 64)
	root := filepath.Join(t.TempDir(), strings.Repeat("r", 60))
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "h") // t.TempDir's is too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	short := filepath.Join(dir, "s")
	if err := os.Symlink(root, short); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(short, "runsc-"+id+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var call struct{ Method, Arg string }
				if json.NewDecoder(conn).Decode(&call) != nil {
					return
				}
				if said, ok := answer(call.Method, call.Arg); ok {
					_, _ = conn.Write([]byte(said))
				}
			}()
		}
	}()
	return &Client{Root: root}, id
}

func TestWaitForAMember(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		status int
		err    error
	}{
		"exit":     {`{"success":true,"err":"","result":768}`, 3, nil},
		"signal":   {`{"success":true,"err":"","result":9}`, 137, nil},
		"gone":     {`{"success":false,"err":"could not find init process of restored container \"c\" in state \"restored\""}`, 0, ErrNotFound},
		"no start": {`{"success":false,"err":"container \"c\" not started"}`, 0, ErrNotRunning},
		"ended":    {``, 0, ErrCrashed},
	} {
		client, sandbox := sandboxOf(t, func(method, arg string) (string, bool) {
			if method != "containerManager.Wait" || arg != "c" {
				t.Errorf("%s: it was asked %s of %s", name, method, arg)
			}
			return c.answer, true
		})
		status, err := client.Wait(t.Context(), sandbox, "c")
		if status != c.status || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	client, sandbox := sandboxOf(t, func(string, string) (string, bool) { <-hold; return "", false })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Wait(ctx, sandbox, "c"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := client.Wait(t.Context(), "none", "c"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a sandbox: %v", err)
	}
}

func TestUsage(t *testing.T) {
	client, sandbox := sandboxOf(t, func(method, _ string) (string, bool) {
		return `{"success":true,"err":"","result":{"event":{},"containerUsage":{"a":5,"b":18446744073709551615}}}`, method == "containerManager.Event"
	})
	used, err := client.Usage(t.Context(), sandbox)
	if err != nil || used["a"] != 5 || used["b"] != 1<<64-1 {
		t.Errorf("%v, %v", used, err)
	}
}

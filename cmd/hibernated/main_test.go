package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

func TestUsage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(bad, []byte("idle-timeuot = \"5m\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--version"}, 0, "hibernated "},
		{[]string{"--help"}, 0, "-config"},
		{[]string{"extra"}, 2, `unexpected argument "extra"`},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{[]string{"--config", bad}, 1, "idle-timeout"},
		{[]string{"--config", bad + ".missing"}, 1, "config.toml.missing"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), test.args, &out, &out); code != test.code || !strings.Contains(out.String(), test.text) {
			t.Errorf("%v: exit code %d, output %q; want %d and %q", test.args, code, out.String(), test.code, test.text)
		}
	}
}

func TestRunsUntilToldToEnd(t *testing.T) {
	dir, err := os.MkdirTemp("", "hibernated")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("run-dir = %q\nmetrics-address = \"\"\nlog-format = \"json\"\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var out testlog.Buffer
	code := make(chan int, 1)
	go func() { code <- run(ctx, []string{"--config", file}, &out, &out) }()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(out.String(), `"msg":"hibernated runs"`); {
		if time.Now().After(deadline) {
			t.Fatal("it does not start:", out.String())
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d: %s", got, out.String())
	}
	for _, socket := range []string{"api.sock", "hibernated.sock"} {
		if _, err := os.Stat(filepath.Join(dir, socket)); !os.IsNotExist(err) {
			t.Errorf("%s stays behind: %v", socket, err)
		}
	}
}

// TestSecondDaemonSaysSo: it ends with an error that names what is in use, and leaves the first one alone.
func TestSecondDaemonSaysSo(t *testing.T) {
	dir, err := os.MkdirTemp("", "hibernated")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("run-dir = %q\ndata-dir = %q\nmetrics-address = \"\"\n", dir, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var first, second testlog.Buffer
	code := make(chan int, 1)
	go func() { code <- run(ctx, []string{"--config", file}, &first, &first) }()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(first.String(), "hibernated runs"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not start:", first.String())
		}
	}
	if got := run(ctx, []string{"--config", file}, &second, &second); got != 1 {
		t.Errorf("exit code %d", got)
	}
	if !strings.Contains(second.String(), filepath.Join(dir, "hibernated.sock")) || !strings.Contains(second.String(), "another") {
		t.Errorf("it says %q", second.String())
	}
	stop()
	if got := <-code; got != 0 {
		t.Errorf("the first one ends with %d: %s", got, first.String())
	}
}

// TestFileLimit: as many connections as there are files for.
func TestFileLimit(t *testing.T) {
	var out testlog.Buffer
	quiet := slog.New(slog.NewTextHandler(&out, nil))
	if got := raiseFileLimit(1, quiet); got != 1 || out.String() != "" {
		t.Errorf("one connection: %d, %s", got, out.String())
	}
	if got := raiseFileLimit(1<<30, quiet); got < 1 || got >= 1<<30 || !strings.Contains(out.String(), "it is lowered") {
		t.Errorf("more than there can be: %d, %s", got, out.String())
	}
}

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain is runsc-fp, when it was installed as that.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "runsc-fp" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// install takes a script for runsc, which leaves a word of each call in a file.
func install(t *testing.T) (d Dir, done string) {
	t.Helper()
	dir := t.TempDir()
	done = filepath.Join(dir, "done")
	script := fmt.Sprintf("#!/bin/sh\necho did $*\necho $* >>%s\n", done)
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err = Install(filepath.Join(dir, "fp"), self, filepath.Join(dir, "script"))
	if err != nil {
		t.Fatal(err)
	}
	return d, done
}

func TestFaults(t *testing.T) {
	for fault, want := range map[Fault]struct {
		end  string
		done bool
	}{
		Fail: {"exit status 128", false}, Die: {"signal: killed", false}, Hang: {"hangs", false},
		LateFail: {"exit status 128", true}, LateDie: {"signal: killed", true}, LateHang: {"hangs", true},
	} {
		t.Run(string(fault), func(t *testing.T) {
			d, done := install(t)
			if err := d.Set("one", Rule{Command: "pause", Skip: 1, Fault: fault}); err != nil {
				t.Fatal(err)
			}
			for _, passes := range [][]string{{"pause", "one"}, {"pause", "other"}, {"--root=one", "resume", "one"}} {
				if out, err := exec.Command(d.Binary(), passes...).Output(); err != nil || !strings.HasPrefix(string(out), "did") {
					t.Fatalf("%v: %s, %v", passes, out, err)
				}
			}
			log := filepath.Join(t.TempDir(), "log")
			if err := errors.Join(os.WriteFile(log, nil, 0o600), os.Remove(done)); err != nil {
				t.Fatal(err)
			}
			if end := endOf(t, exec.Command(d.Binary(), "--log="+log, "pause", "--flag", "one"), done, want.done); end != want.end {
				t.Errorf("it ends with %s, want %s", end, want.end)
			}
			if _, err := os.Stat(done); (err == nil) != want.done {
				t.Errorf("whether it was done: %v", err)
			}
			if b, err := os.ReadFile(log); err != nil || strings.Contains(string(b), `"level":"error"`) != strings.Contains(want.end, "128") {
				t.Errorf("the log has %q: %v", b, err)
			}
			if n, err := d.Hits("one"); err != nil || n != 1 {
				t.Errorf("%d hits, %v", n, err)
			}
		})
	}
}

// endOf says how a call ends; one that doesn't is ended after its work is done, if it does any.
func endOf(t *testing.T, cmd *exec.Cmd, done string, works bool) string {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-ended:
			return fmt.Sprint(err)
		default:
		}
		_, err := os.Stat(done)
		if (err == nil) == works && time.Since(deadline.Add(-10*time.Second)) > 200*time.Millisecond || time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-ended
			return "hangs"
		}
	}
}

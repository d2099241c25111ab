package runsc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sidecarOf runs a shell in a sidecar's place: what it prints are the events.
func sidecarOf(t *testing.T, l *Loading, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", `exec >"$0"; echo "{\"Event\":\"started\",\"Pid\":$$}"; `+script, filepath.Join(l.Dir(), "status"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func startLoading(t *testing.T) *Loading {
	t.Helper()
	l, err := StartLoading(filepath.Join(t.TempDir(), "loading"), SidecarOptions{
		Directory: "/image", ChunkSize: 4096, Parallel: 2, Files: []SidecarFile{{Name: "pages.img", Size: 1, CRC32C: []uint32{1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func done(t *testing.T, l *Loading) {
	t.Helper()
	select {
	case <-l.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the load has no end")
	}
}

func TestLoadingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		check  func(*Loading) bool
	}{
		"loaded": {`echo '{"Event":"loaded","Bytes":7}'`, func(l *Loading) bool {
			n, ok := l.Loaded()
			return ok && n == 7 && l.Err() == nil
		}},
		"a corrupt chunk": {`echo '{"Event":"failed","File":"pages.img","Chunk":3,"Corrupt":true,"Reason":"r"}'`, func(l *Loading) bool {
			var e *LoadError
			return errors.As(l.Err(), &e) && e.Corrupt && e.Chunk == 3 && e.File == "pages.img" && strings.Contains(e.Error(), "r")
		}},
		"the first counts": {`echo '{"Event":"failed","File":"f"}'; echo '{"Event":"loaded"}'`, func(l *Loading) bool {
			_, ok := l.Loaded()
			return !ok && l.Err() != nil
		}},
		"killed": {`kill -9 $$`, func(l *Loading) bool { return errors.Is(l.Err(), ErrSidecarEnded) }},
		"the sandbox left": {`echo '{"Event":"left"}'`, func(l *Loading) bool {
			_, ok := l.Loaded()
			return !ok && l.Err() == nil
		}},
		"nonsense": {`echo nonsense`, func(l *Loading) bool { return errors.Is(l.Err(), ErrSidecarEnded) }},
	} {
		t.Run(name, func(t *testing.T) {
			l := startLoading(t)
			sidecarOf(t, l, c.script)
			done(t, l)
			if !c.check(l) {
				t.Errorf("it ended with %v", l.Err())
			}
		})
	}
}

// Close ends a sidecar that hangs, and takes the directory away; it may come before one has started, and twice.
func TestLoadingCloses(t *testing.T) {
	l := startLoading(t)
	cmd := sidecarOf(t, l, "kill -STOP $$; sleep 1000")
	for i := range 2 {
		if err := l.Close(); err != nil {
			t.Fatalf("close %d: %v", i, err)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the sidecar ended well")
	}
	early := startLoading(t)
	if err := early.Close(); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Loading{l, early} {
		if _, err := os.Stat(l.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", l.Dir(), err)
		}
	}
}

// TestLoadingClosesBeforeItIsTold: a sidecar that is about to say who it is ends, too.
func TestLoadingClosesBeforeItIsTold(t *testing.T) {
	l := startLoading(t)
	status := filepath.Join(l.Dir(), "status")
	cmd := exec.Command("sh", "-c", `exec >"$0"; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo "{\"Event\":\"started\",\"Pid\":$$}"; kill -STOP $$`, status)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", cmd.Process.Pid)); err == nil && to == status {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("its output is %s, %v", to, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is written is what sidecar/gofer/options.go reads.
func TestSidecarOptions(t *testing.T) {
	l := startLoading(t)
	data, err := os.ReadFile(filepath.Join(l.Dir(), "gcs_opts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"Version", "Status", "Directory", "ChunkSize", "Parallel", "Files", "Record"} {
		if _, ok := got[key]; !ok {
			t.Errorf("%s is missing in %s", key, data)
		}
	}
	if len(got) != 7 {
		t.Errorf("more than the sidecar takes: %s", data)
	}
}

// What was asked for out of turn is read as it was told; a file that makes no sense is none.
func TestOutOfTurn(t *testing.T) {
	for what, c := range map[string]struct {
		content string
		want    []Read
	}{
		"some":            {"[[4096,8192],[0,4096]]", []Read{{4096, 8192}, {0, 4096}}},
		"none":            {"[]", nil},
		"half of it":      {"[[4096,8192],[0,40", nil},
		"another thing":   {`{"a":1}`, nil},
		"text":            {`[["a",1]]`, nil},
		"more than it is": {"[" + strings.Repeat("[4096,8192],", maxRecord/12) + "[0,4096]]", nil},
	} {
		l := startLoading(t)
		if err := os.WriteFile(filepath.Join(l.Dir(), "touched"), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := l.OutOfTurn(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
	l := startLoading(t)
	if got := l.OutOfTurn(); got != nil {
		t.Errorf("without a file: %v", got)
	}
	if err := os.Symlink("/proc/self/stat", filepath.Join(l.Dir(), "touched")); err != nil {
		t.Fatal(err)
	}
	if got := l.OutOfTurn(); got != nil {
		t.Errorf("of another file: %v", got)
	}
}

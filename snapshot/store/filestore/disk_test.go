package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/filestore"
)

// tree are all paths below a directory but for the store's own, with their modes.
func tree(t *testing.T, root string) map[string]fs.FileMode {
	t.Helper()
	all := map[string]fs.FileMode{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if rel, _ := filepath.Rel(root, path); rel != "." && !strings.HasPrefix(rel, ".store/locks/") {
			all[rel] = info.Mode()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func put(t *testing.T, s store.Store, name, body string) store.Version {
	t.Helper()
	version, err := s.Put(t.Context(), name, []byte(body), store.Always)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	put(t, s, "a/b/c", "x")
	if _, err := s.Put(t.Context(), "a/new", []byte("x"), store.Condition{Absent: true}); err != nil {
		t.Fatal(err)
	}
	for path, mode := range tree(t, dir) {
		want := fs.FileMode(0o600)
		if mode.IsDir() {
			want = 0o700
		}
		if mode.Perm() != want {
			t.Errorf("%s has mode %04o; want %04o", path, mode.Perm(), want)
		}
	}
	if body, err := os.ReadFile(filepath.Join(dir, "a/b/c")); err != nil || string(body) != "x" {
		t.Errorf("the file of an object has %q, %v; want its bytes alone", body, err)
	}
}

func TestEmptyDirectoriesGo(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "a/b/c", "x")
	put(t, s, "a/d", "x")
	for _, step := range []struct {
		name string
		left []string
	}{{"a/b/c", []string{".store", ".store/locks", ".store/tmp", "a", "a/d"}}, {"a/d", []string{".store", ".store/locks", ".store/tmp"}}} {
		if err := s.Delete(t.Context(), step.name); err != nil {
			t.Fatal(err)
		}
		var left []string
		for path := range tree(t, dir) {
			left = append(left, path)
		}
		slices.Sort(left)
		if !slices.Equal(left, step.left) {
			t.Errorf("after %s went there is %q; want %q", step.name, left, step.left)
		}
	}
}

// Links could lead out of the store, or make two objects one.
func TestSymlinksAreRefused(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, link := range map[string]struct{ at, to, name string }{
		"an object that is a link":              {"x", filepath.Join(outside, "x"), "x"},
		"an object that is a dangling link":     {"x", "nowhere", "x"},
		"an object that is a link to a sibling": {"x", "real", "x"},
		"a directory that is a link":            {"d", outside, "d/x"},
		"a directory that is a link within":     {"d", "e", "d/x"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			put(t, s, "real", "real")
			put(t, s, "e/x", "e")
			if err := os.Symlink(link.to, filepath.Join(dir, link.at)); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			errs := map[string]error{}
			_, _, errs["get"] = s.Get(ctx, link.name, 100)
			_, errs["range"] = s.GetRange(ctx, link.name, 0, 1)
			_, errs["stat"] = s.Stat(ctx, link.name)
			_, errs["put"] = s.Put(ctx, link.name, []byte("y"), store.Always)
			_, errs["put new"] = s.Put(ctx, link.name, []byte("y"), store.Condition{Absent: true})
			_, errs["put changed"] = s.Put(ctx, link.name, []byte("y"), store.Condition{Version: "v"})
			_, _, errs["list"] = s.List(ctx, "")
			errs["delete"] = s.Delete(ctx, link.name)
			for op, err := range errs {
				if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "symbolic link") {
					t.Errorf("%s: %v; want it to be refused for the link", op, err)
				}
			}
			if body, err := os.ReadFile(filepath.Join(outside, "x")); err != nil || string(body) != "secret" {
				t.Errorf("outside there is %q, %v", body, err)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
				t.Errorf("outside there are %v, %v", left, err)
			}
		})
	}
	// The root itself may be reached by one: that is the configuration's business.
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	put(t, open(t, link), "x", "x")
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := unix.Mkfifo(filepath.Join(dir, "x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.Get(t.Context(), "x", 10)
	if !errors.Is(err, store.ErrRefused) {
		t.Errorf("get of a FIFO: %v; want it to be refused", err)
	}
	if _, err = s.Put(t.Context(), "x", []byte("x"), store.Always); !errors.Is(err, store.ErrRefused) {
		t.Errorf("put over a FIFO: %v; want it to be refused", err)
	}
}

// One name that goes on from another: a directory can't hold both.
func TestNameBelowAnother(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "a/b", "x")
	for _, name := range []string{"a", "a/b/c"} {
		for _, cond := range []store.Condition{{}, {Absent: true}} {
			if _, err := s.Put(t.Context(), name, []byte("y"), cond); !errors.Is(err, store.ErrRefused) {
				t.Errorf("put %s beside a/b: %v; want it to be refused", name, err)
			}
		}
		if err := s.Delete(t.Context(), name); err != nil {
			t.Errorf("delete %s, which can't be there: %v", name, err)
		}
	}
	if body, _, err := s.Get(t.Context(), "a/b", 10); err != nil || string(body) != "x" {
		t.Errorf("%q, %v; want what was there", body, err)
	}
}

func TestRootsThatAreRefused(t *testing.T) {
	open, shared, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.Chmod(open, 0o777), os.Chmod(shared, 0o770), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for dir, say := range map[string]string{
		"relative": "absolute",
		open:       "chmod",
		shared:     "chmod",
		file:       "directory",
	} {
		if _, err := filestore.Open(dir); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v; want it to be refused, and told: %s", dir, err, say)
		}
	}
}

// A directory that is not there may be a disk that isn't mounted yet: it is away, and no misuse.
func TestMissingRootIsAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	if _, err := filestore.Open(dir); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "mount it") {
		t.Errorf("%v; want it to be unavailable, and told", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, open(t, dir), "x", "x")
}

// A list of names that no object has leaves them out: the store's own, and strangers.
func TestStrangersAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "x", "x")
	for _, name := range []string{".hidden", "new\nline", "\xff", ".d/x"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("y"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if found, _, err := s.List(t.Context(), ""); err != nil || len(found) != 1 {
		t.Errorf("listed %v, %v; want x alone", found, err)
	}
}

// What a process has left that died while it wrote is removed by the next; what one writes just now isn't.
func TestLeftoversAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	left, written := filepath.Join(dir, ".store/tmp/left"), filepath.Join(dir, ".store/tmp/written")
	if err := errors.Join(os.WriteFile(left, []byte("half"), 0o600), os.WriteFile(written, []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(written)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what nobody writes is still there: %v", err)
	}
	if _, err := os.Stat(written); err != nil {
		t.Errorf("what somebody writes is gone: %v", err)
	}
	if found, _, err := s.List(t.Context(), ""); err != nil || len(found) != 0 {
		t.Errorf("listed %v, %v; want none", found, err)
	}
}

// An operation that can't go on ends with its context, and has done nothing.
func TestWaitingEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "x", "before")
	locks, err := filepath.Glob(filepath.Join(dir, ".store/locks/*"))
	if err != nil || len(locks) != 1 {
		t.Fatal(locks, err)
	}
	f, err := os.Open(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.Put(ctx, "x", []byte("after"), store.Always); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("put: %v; want %v", err, context.DeadlineExceeded)
	}
	if err := s.Delete(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("delete: %v; want %v", err, context.DeadlineExceeded)
	}
	if body, _, err := s.Get(t.Context(), "x", 10); err != nil || string(body) != "before" {
		t.Errorf("%q, %v; want what was there", body, err)
	}
}

func TestClosed(t *testing.T) {
	s := open(t, t.TempDir())
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put(t.Context(), "x", []byte("x"), store.Always); !errors.Is(err, os.ErrClosed) {
		t.Errorf("put after close: %v; want %v", err, os.ErrClosed)
	}
}

// child is set in processes that the tests start: what they do.
const child = "FILESTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(child); what != "" {
		if err := children[what](os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var children = map[string]func(dir string) error{"count": count, "write": writeForEver}

func start(t *testing.T, what, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), child+"="+what)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

const countTo = 25

// count adds 1 to an object by comparison.
func count(dir string) error {
	s, err := filestore.Open(dir)
	if err != nil {
		return err
	}
	for done := 0; done < countTo; {
		body, info, err := s.Get(context.Background(), "count", 100)
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(strings.Fields(string(body))[0])
		next := fmt.Sprintf("%d by %d at %d", n+1, os.Getpid(), time.Now().UnixNano())
		switch _, err := s.Put(context.Background(), "count", []byte(next), store.Condition{Version: info.Version}); {
		case err == nil:
			done++
		case !errors.Is(err, store.ErrChanged):
			return err
		}
	}
	return nil
}

func TestProcessesLoseNoUpdate(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "count", "0")
	const processes = 4
	var all sync.WaitGroup
	for range processes {
		cmd := start(t, "count", dir)
		all.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	body, _, err := s.Get(t.Context(), "count", 100)
	if err != nil || !strings.HasPrefix(string(body), fmt.Sprint(processes*countTo, " ")) {
		t.Errorf("%q, %v; want %d", body, err, processes*countTo)
	}
}

// writeForEver writes objects in all ways, and deletes them, until it is killed.
func writeForEver(dir string) error {
	s, err := filestore.Open(dir)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i := 0; ; i++ {
		body := []byte(strings.Repeat(fmt.Sprintf("%08d", i), 5000))
		version, err := s.Put(ctx, "a/x", body, store.Always)
		if err == nil {
			_, err = s.Put(ctx, "a/x", append(body, body...), store.Condition{Version: version})
		}
		if err == nil {
			_, err = s.Put(ctx, fmt.Sprintf("b/c/%d", i), body, store.Condition{Absent: true})
		}
		if err == nil {
			err = s.Delete(ctx, fmt.Sprintf("b/c/%d", i-1))
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
}

// Killed at any moment it leaves whole objects, and nothing else once the next one has opened the store.
func TestKilledWhileItWrites(t *testing.T) {
	dir := t.TempDir()
	for round := range 15 {
		cmd := start(t, "write", dir)
		time.Sleep(time.Duration(5+round*3) * time.Millisecond) // any moment is as good as another
		cmd.Process.Kill()
		cmd.Wait()
		s := open(t, dir)
		if left, err := os.ReadDir(filepath.Join(dir, ".store/tmp")); err != nil || len(left) > 0 {
			t.Fatalf("unfinished files are left: %v, %v", left, err)
		}
		found, _, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			body, _, err := s.Get(t.Context(), o.Name, 1<<20)
			if err != nil || len(body)%40000 != 0 || len(body) == 0 || strings.Repeat(string(body[:8]), len(body)/8) != string(body) {
				t.Fatalf("%s has %d bytes, %v; want a whole object", o.Name, len(body), err)
			}
			if strings.HasPrefix(o.Name, "b/") {
				if err := s.Delete(t.Context(), o.Name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

package handover

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
)

func TestListenModeAndCleanUp(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "d.sock")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestSecondDaemonIsToldOfTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v, want ErrInUse", err)
	}
	s.Close()
	s, err = Listen(path)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	s.Close()
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	dead, err := bind(path) // as a daemon that was killed leaves it
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	if _, err := Dial(testContext(t), path); err == nil {
		t.Fatal("the stale socket answers")
	}
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := Dial(testContext(t), path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "d.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Fatal("listens over a file")
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Errorf("the file holds %q", data)
	}
}

func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run[1]*")
	if got, err := ListRecords(dir); err != nil || len(got) != 0 {
		t.Fatalf("no directory: %v, %v", got, err)
	}
	a := Record{Namespace: "default", ID: "a.b", Address: "unix:///a", Pid: 3, StartTime: 4, Bundle: "/b", Version: "v"}
	b := Record{Namespace: "k8s.io", ID: "b", Pid: 5}
	for _, r := range []Record{a, b, a} {
		if err := WriteRecord(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadRecord(dir, "default", "a.b"); err != nil || got != a {
		t.Errorf("read %+v, %v", got, err)
	}
	if got, err := ListRecords(dir); err != nil || !reflect.DeepEqual(got, []Record{a, b}) {
		t.Errorf("listed %+v, %v", got, err)
	}
	broken := filepath.Join(dir, "shims", "default", "c.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ListRecords(dir); err == nil || len(got) != 2 {
		t.Errorf("beside a broken one: %+v, %v", got, err)
	}
	for range 2 {
		if err := RemoveRecord(dir, "k8s.io", "b"); err != nil {
			t.Error(err)
		}
	}
	if _, err := ReadRecord(dir, "k8s.io", "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed record: %v", err)
	}
	if err := WriteRecord(dir, Record{Namespace: "..", ID: "x"}); err == nil {
		t.Error("wrote outside its directory")
	}
}

func TestAlive(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if r := (Record{Pid: os.Getpid(), StartTime: start}); !r.Alive() {
		t.Error("this process is not alive")
	}
	if r := (Record{Pid: os.Getpid(), StartTime: start + 1}); r.Alive() {
		t.Error("a reused pid is alive")
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := Record{Pid: cmd.Process.Pid}
	if r.StartTime, err = StartTime(r.Pid); err != nil {
		t.Fatal(err)
	}
	if !r.Alive() {
		t.Error("the child is not alive")
	}
	in.Close()
	cmd.Wait()
	if r.Alive() {
		t.Error("the dead child is alive")
	}
}

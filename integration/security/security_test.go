package security

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/internal/testroot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// start runs hibernated with a store and other nodes, and a workload.
func start(t *testing.T) (runDir, dataDir string) {
	t.Helper()
	testroot.Require(t)
	old := unix.Umask(0) // so that what is asked for is what files get
	t.Cleanup(func() { unix.Umask(old) })
	top, err := os.MkdirTemp("/tmp", "sec") // short enough for sockets, and others may come as far as that
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	runDir, dataDir = filepath.Join(top, "run"), filepath.Join(top, "data")
	bucket := memstore.NewBucket()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- daemon.Run(ctx, daemon.Options{
			RunDir: runDir, DataDir: dataDir, Version: "v1", Ready: func() { close(ready) },
			Store: &daemon.StoreOptions{
				URL: "s3://bucket", Node: "node-1", Keys: durable.Keyring{Current: durable.InsecurePlaintext()}, PeerAddress: "127.0.0.1:0",
				PeerAdvertise: "127.0.0.1:1", TakeOver: time.Minute, Facts: func() map[string]string { return nil },
				Open: func() (store.Store, error) { return bucket.Store(), nil },
			},
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	shimtest.Start(t, "default", "redis").Record(t, runDir)
	return runDir, dataDir
}

// sockets are all below a directory.
func sockets(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type()&fs.ModeSocket != 0 {
			all = append(all, path)
		}
		return err
	})
	if err != nil || len(all) < 3 {
		t.Fatalf("%q, %v", all, err)
	}
	return all
}

// Whatever the umask, nothing that hibernated makes can be read or entered by others.
func TestFilesAreRootsAlone(t *testing.T) {
	runDir, dataDir := start(t)
	files := 0
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the key is made beside the start
		if _, err := os.Stat(filepath.Join(dataDir, ".durable/peer.key")); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{runDir, dataDir} {
		if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return nil // gone meanwhile
			}
			files++
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %s", path, info.Mode())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if files < 8 {
		t.Errorf("only %d files were seen", files)
	}
}

// nobody is a user without any rights.
const nobody = 65534

// dialAs connects as another user: the kernel notes who it was.
func dialAs(t *testing.T, uid int, path string) net.Conn {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends with what it has become
		keep := ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 { // of this thread alone
			done <- result{nil, errno}
			return
		}
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EPROTOTYPE) {
			conn, err = net.Dial("unixpacket", path)
		}
		done <- result{conn, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(path, r.err)
	}
	return r.conn
}

// closed reports whether whoever serves a connection ends it at once.
func closed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	var late net.Error
	return !(errors.As(err, &late) && late.Timeout()) && err != nil
}

// Should others get at the sockets all the same, as by a mode that somebody has changed, they are told nothing.
func TestOthersAreTurnedAway(t *testing.T) {
	runDir, _ := start(t)
	all := sockets(t, runDir)
	for _, dir := range []string{runDir, filepath.Dir(runDir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range all {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		ours := dialAs(t, os.Geteuid(), path)
		if closed(ours) {
			t.Errorf("%s turns root away", path)
		}
		_ = ours.Close()
		others := dialAs(t, nobody, path)
		if !closed(others) {
			t.Errorf("%s answers another user", path)
		}
		_ = others.Close()
	}
	// Not even what needs no right is answered.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for uid, want := range map[int]bool{os.Geteuid(): true, nobody: false} {
		client := ttrpc.NewClient(dialAs(t, uid, filepath.Join(runDir, "api.sock")))
		resp, err := daemonv1.NewTTRPCDaemonClient(client).Version(ctx, &daemonv1.VersionRequest{})
		if got := err == nil && resp.GetVersion() == "v1"; got != want {
			t.Errorf("user %d: %v, %v", uid, resp, err)
		}
		_ = client.Close()
	}
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

var storeSet = set{file: "bench-store.jsonl", load: flatLoad, prepare: startStore, parts: []part{
	{"uploads", measureUploads},
	{"shares", measureShares},
	{"tree", measureTree},
	{"neighbour", measureNeighbour},
	{"wakes", measureStoreWakes},
	{"chaos", measureChaos},
}}

// A bucket is an S3 server on the world's loopback, which the world's daemon has as its store.
type bucket struct {
	command *exec.Cmd
	data    string // directory of its objects
	dir     string
	address string
	url     string
	key     string // file
}

const bucketName = "bench"

// startStore starts a server, and has the daemon use it. It runs at the lowest priority: elsewhere it would be another machine's.
func startStore(ctx context.Context, b *bench) (stop func() error, err error) {
	k := &bucket{address: "127.0.0.1:9477"} // the world's own
	if k.dir, err = os.MkdirTemp("/var/tmp", "bench-store-"); err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(k.end(), os.RemoveAll(k.dir)) }
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	k.data, k.key = filepath.Join(k.dir, "data"), filepath.Join(k.dir, "key")
	credentials := filepath.Join(k.dir, "credentials")
	for path, text := range map[string]string{
		k.key: strings.Repeat("k", 32), credentials: "[default]\naws_access_key_id = bench\naws_secret_access_key = bench-secret\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(k.data, bucketName), 0o700); err != nil {
		return nil, err
	}
	k.url = fmt.Sprintf("s3://%s/snapshots?endpoint=http://%s&region=us-east-1&credentials=%s", bucketName, k.address, credentials)
	if err := k.start(ctx, b); err != nil {
		return nil, err
	}
	b.bucket = k
	return stop, b.useStore(ctx, nil)
}

func (k *bucket) start(ctx context.Context, b *bench) error {
	log, err := os.OpenFile(filepath.Join(k.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	k.command = b.world.Command(context.WithoutCancel(ctx), "nice", "-n", "19", b.world.Program("versitygw"), "--access", "bench", "--secret", "bench-secret",
		"--port", k.address, "--keep-alive", "--quiet", "posix", k.data)
	k.command.Stdout, k.command.Stderr = log, log
	if err := k.command.Start(); err != nil {
		return fmt.Errorf("versitygw: %w", err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := b.world.DialNode(ctx, "tcp", k.address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("versitygw doesn't answer: %w", err)
		}
	}
}

// end ends the server as a crash does.
func (k *bucket) end() error {
	if k.command == nil || k.command.Process == nil {
		return nil
	}
	err := k.command.Process.Signal(syscall.SIGKILL)
	_ = k.command.Wait()
	k.command = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// useStore starts the daemon anew with the store, and further settings.
func (b *bench) useStore(ctx context.Context, more map[string]string) error {
	w := b.world
	path := w.Path(w.ConfigFile())
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	base, _, _ := strings.Cut(string(text), "# the store\n")
	base += fmt.Sprintf("# the store\nstore = %q\nstore-key-file = %q\n", b.bucket.url, b.bucket.key)
	for k, v := range more {
		base += k + " = " + v + "\n"
	}
	if err := os.WriteFile(path, []byte(base), 0o644); err != nil {
		return err
	}
	if err := w.Daemon.Stop(ctx); err != nil {
		return err
	}
	return w.Daemon.Start(ctx)
}

// An uploaded snapshot, as the daemon's log tells it.
type uploaded struct {
	name        string // of the lineage
	sequence    int
	sent, image float64 // bytes
	took        time.Duration
}

var uploadedPattern = regexp.MustCompile(`msg=uploaded workload=\S+/(\S+) name=(\S+) sequence=(\d+) sent=(\d+) image=(\d+) full=\w+ ms=(\d+)`)

// uploaded waits until a workload's snapshot is in the store.
func (b *bench) uploaded(ctx context.Context, id string, sequence int) (u uploaded, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		f, err := os.Open(b.world.Path(b.world.Daemon.LogFile))
		if err != nil {
			return u, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			m := uploadedPattern.FindStringSubmatch(lines.Text())
			if m == nil || m[1] != id || m[3] != strconv.Itoa(sequence) {
				continue
			}
			u.name, u.sequence = m[2], sequence
			u.sent, _ = strconv.ParseFloat(m[4], 64)
			u.image, _ = strconv.ParseFloat(m[5], 64)
			ms, _ := strconv.Atoi(m[6])
			u.took = max(time.Duration(ms), 1) * time.Millisecond
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil || u.sequence != 0 {
			return u, err
		}
		select {
		case <-ctx.Done():
			return u, fmt.Errorf("snapshot %d of %s was not uploaded: %w\n%s", sequence, id, context.Cause(ctx), b.world.Daemon.LogTail(2000))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sequence is that of a sleeper's snapshot.
func (o *ours) sequence() (int, error) {
	found, err := filepath.Glob(filepath.Join(o.local(), "[0-9]*", "manifest.json"))
	if err != nil || len(found) != 1 {
		return 0, fmt.Errorf("%s: %d snapshots in %s: %w", o.id, len(found), o.local(), err)
	}
	return strconv.Atoi(filepath.Base(filepath.Dir(found[0])))
}

// sleepUploaded has a workload sleep, and waits for its copy.
func (o *ours) sleepUploaded(ctx context.Context, b *bench) (uploaded, error) {
	if _, _, err := o.sleep(ctx); err != nil {
		return uploaded{}, err
	}
	n, err := o.sequence()
	if err != nil {
		return uploaded{}, err
	}
	return b.uploaded(ctx, o.id, n)
}

// inWorld runs a task of this program's in the world's network.
func (b *bench) inWorld(ctx context.Context, t storeTask) (r storeRates, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	t.URL, t.Key = b.bucket.url, b.bucket.key
	enter, err := newThread(func() error { return b.world.Enter() })
	if err != nil {
		return r, err
	}
	defer enter.close()
	return runStoreTask(ctx, b, enter, self, t)
}

// local is the directory of a workload's snapshots on the node.
func (o *ours) local() string {
	return snapshot.DirFor(o.world.Path(o.world.DataDir()), o.world.Name, o.id, "")
}

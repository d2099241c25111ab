package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// objects has a Python interpreter hold so many objects beside its web server. While /busy is there it works with them: it reads all, again
// and again, and replaces a few.
const objects = `
import os, threading, time
objects = [{'id': i, 'name': 'item-%%d' %% i, 'v': [i, i * 2, float(i)]} for i in range(%d)]
def work():
    n = passes = 0
    while True:
        if not os.path.exists('/busy'):
            time.sleep(0.05)
            continue
        total = 0
        for o in objects[passes %% 100::100]:
            total += o['v'][0] + len(o['name'])
        passes += 1
        for k in range(10):
            objects[(passes * 7919 + k * 104729) %% len(objects)] = {'id': passes, 'name': 'item-%%d' %% total, 'v': [passes, total, float(total)]}
        with open('/worked', 'w') as f:
            f.write(str(passes))
threading.Thread(target=work, daemon=True).start()
`

// objectSize is about what one of them takes, in bytes.
const objectSize = 450

// newPython runs such an interpreter.
func newPython(ctx context.Context, b *bench, mib int) (*ours, error) {
	dir := filepath.Join(b.bucket.dir, "site") // Python looks there at its start
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(objects, mib<<20/objectSize)
	if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	return newOursOf(ctx, b, "python", func(o *ours) (harness.Container, error) {
		o.image = "python3"
		o.address = netip.AddrPortFrom(o.address.Addr(), 8000)
		o.client.request, o.client.answer = []byte("GET / HTTP/1.0\r\n\r\n"), []byte("HTTP/1.0 200")
		return harness.Container{
			ID: o.id, Image: o.image, NetNS: o.pod.Path, Detach: true, Env: []string{"PYTHONPATH=/opt/site"},
			Flags: []string{"--mount", "type=bind,src=" + dir + ",dst=/opt/site,options=rbind:ro"},
		}, o.world.Import(ctx, o.image)
	})
}

// measureUploads compares the first upload of an image with what its parts could do by themselves, and a restore.
func measureUploads(ctx context.Context, b *bench) error {
	var put, restored, image, random samples
	for range b.plan.store.uploads {
		if err := b.uploadOnce(ctx, &put, &restored, &image, &random); err != nil {
			return err
		}
	}
	b.add("upload_first_ratio", put.median(), "ratio", ">= 0.6", len(put))
	b.add("restore_ratio", restored.median(), "ratio", ">= 0.6", len(restored))
	b.add("upload_first_MBps", image.median(), "MB/s", "", len(image))
	b.add("upload_first_random_ratio", random.median(), "ratio", "", len(random))
	return nil
}

func (b *bench) uploadOnce(ctx context.Context, put, restored, image, random *samples) (err error) {
	o, err := newPython(ctx, b, b.plan.store.uploadMiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	u, err := o.sleepUploaded(ctx, b)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.bucket.dir, "restored")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := b.inWorld(ctx, storeTask{Pages: o.pages(u.sequence), Workers: max(1, runtime.GOMAXPROCS(0)/2), Restore: u.name, Dir: dir})
	if err != nil {
		return err
	}
	rate := u.image / u.took.Seconds()
	put.addValue(rate / min(r.Zstd, r.Put*u.image/u.sent))
	restored.addValue(r.Restore / min(r.Decode, r.Get*r.Image/r.Fetch))
	image.addValue(rate / 1e6)
	fmt.Fprintf(os.Stderr, "bench: %.0f MB sent as %.0f in %v; MB/s: upload %.0f, zstd %.0f, put %.0f; restore %.0f, get %.0f, decode %.0f\n",
		u.image/1e6, u.sent/1e6, u.took, rate/1e6, r.Zstd/1e6, r.Put/1e6, r.Restore/1e6, r.Get/1e6, r.Decode/1e6)
	return b.uploadRandom(ctx, random)
}

// uploadRandom does the same with memory that nothing makes smaller.
func (b *bench) uploadRandom(ctx context.Context, random *samples) (err error) {
	o, err := newLoaded(ctx, b, flatLoad, b.plan.store.uploadMiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	u, err := o.sleepUploaded(ctx, b)
	if err != nil {
		return err
	}
	r, err := b.inWorld(ctx, storeTask{Pages: o.pages(u.sequence), Workers: max(1, runtime.GOMAXPROCS(0)/2)})
	if err != nil {
		return err
	}
	random.addValue(u.image / u.took.Seconds() / min(r.Zstd, r.Put*u.image/u.sent))
	return nil
}

// pages is the file of a sleeper's memory.
func (o *ours) pages(sequence int) string {
	return filepath.Join(o.local(), strconv.Itoa(sequence), "image", "pages.img")
}

// measureShares tells how much of its image an interpreter's second snapshot sends: having done nothing, and having worked.
func measureShares(ctx context.Context, b *bench) (err error) {
	o, err := newPython(ctx, b, 170)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	time.Sleep(2 * time.Second) // who asked it first has left in the middle of the answer, which it tells at length: 10 MB of Python's own
	if _, err := o.sleepUploaded(ctx, b); err != nil {
		return err
	}
	var idle, busy samples
	for range b.plan.store.shares {
		for _, of := range []struct {
			into   *samples
			before func() error
		}{{&idle, func() error { return o.idle(ctx) }}, {&busy, func() error { return o.work(ctx) }}} {
			if err := of.before(); err != nil {
				return err
			}
			u, err := o.sleepUploaded(ctx, b)
			if err != nil {
				return err
			}
			of.into.addValue(u.sent / u.image)
			fmt.Fprintf(os.Stderr, "bench: %.1f of %.0f MB sent\n", u.sent/1e6, u.image/1e6)
		}
	}
	b.add("upload_idle_share", idle.quantile(1), "share", "<= 0.01", len(idle))
	b.add("upload_busy_share", busy.quantile(1), "share", "<= 0.15", len(busy))
	return nil
}

// idle has a sleeper be awake for a while, in which nobody wants anything of it.
func (o *ours) idle(ctx context.Context) error {
	_, err := o.shim.Wake(ctx, &shimv1.WakeRequest{Reason: "bench"})
	time.Sleep(2 * time.Second)
	return err
}

// work has a sleeper's interpreter work for a while.
func (o *ours) work(ctx context.Context) error {
	_, err := o.world.Exec(ctx, o.id, "sh", "-c", "touch /busy; sleep 5; rm /busy; sleep 0.2; [ -s /worked ]") // which wakes
	return err
}

// tree writes many files, or changes each so-manieth of them.
const tree = `
import os, sys, random
n, every, size = int(sys.argv[1]), int(sys.argv[2]), 32768
r = random.Random(every)
words = [bytes(r.choices(b'abcdefghijklmnopqrstuvwxyz', k=r.randint(2, 9))) for _ in range(3000)]
for i in range(0, n, every):
    d = '/srv/node_modules/p%d/lib' % (i // 50)
    os.makedirs(d, exist_ok=True)
    with open('%s/f%d.js' % (d, i), 'wb') as f:
        f.write((b' '.join(r.choices(words, k=size // 6)) + b'%d' % every)[:size].ljust(size))
`

const (
	treeFile    = 32 << 10
	treeChanged = 64 // each so-manieth file
)

// measureTree tells how much is sent of a tree of files in the sandbox's memory, of which a few were written again.
func measureTree(ctx context.Context, b *bench) (err error) {
	o, err := newProgram(ctx, b, served{name: "python3", port: 8000, ask: "GET / HTTP/1.0\r\n\r\n", answer: "HTTP/1.0 200"}, flatLoad)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	files := b.plan.store.treeMiB << 20 / treeFile
	write := func(every int) error {
		_, err := o.world.Exec(ctx, o.id, "python3", "-c", tree, strconv.Itoa(files), strconv.Itoa(every))
		return err
	}
	if err := write(1); err != nil {
		return err
	}
	if _, err := o.sleepUploaded(ctx, b); err != nil {
		return err
	}
	if err := write(treeChanged); err != nil { // which wakes
		return err
	}
	u, err := o.sleepUploaded(ctx, b)
	if err != nil {
		return err
	}
	changed := float64(files) / treeChanged * treeFile
	b.add("upload_tree_share", u.sent/u.image, "share", fmt.Sprintf("<= %.3f", changed/u.image+0.01), 1)
	b.add("upload_tree_sent_over_changed", u.sent/changed, "ratio", "", 1)
	return nil
}

// measureNeighbour has a workload asked as fast as it answers, while another's snapshot is uploaded and while nothing is.
func measureNeighbour(ctx context.Context, b *bench) (err error) {
	n, err := newLoaded(ctx, b, flatLoad, 16)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	o, err := newLoaded(ctx, b, flatLoad, neighbourMiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if _, err := o.sleepUploaded(ctx, b); err != nil {
		return err
	}
	var ratios samples
	for range b.plan.store.neighbour {
		alone, err := n.inPieces(ctx)
		if err != nil {
			return err
		}
		with, err := n.besideUploads(ctx, b, o)
		if err != nil {
			return err
		}
		again, err := n.inPieces(ctx)
		if err != nil {
			return err
		}
		ratios.addValue(with / ((alone + again) / 2))
		fmt.Fprintf(os.Stderr, "bench: a neighbour answers %.0f, %.0f and %.0f a second: before, beside and after\n", alone, with, again)
	}
	b.add("upload_neighbour_rps_ratio", ratios.median(), "ratio", ">= 0.95", len(ratios))
	return nil
}

const (
	neighbourMiB  = 64 // the machine is another one a minute later: what is compared must lie close together
	neighbourTime = 5 * time.Second
	neighbourStep = 200 * time.Millisecond
)

// inPieces asks as often as besideUploads does: each piece begins with new connections.
func (n *ours) inPieces(ctx context.Context) (float64, error) {
	var sum, pieces float64
	for began := time.Now(); time.Since(began) < neighbourTime; pieces++ {
		rate, _, err := n.requests(ctx, neighbourStep)
		if err != nil {
			return 0, err
		}
		sum += rate
	}
	return sum / pieces, nil
}

// besideUploads asks while a sleeper's image is uploaded whole: the store has lost it, and the daemon is started anew.
func (n *ours) besideUploads(ctx context.Context, b *bench, o *ours) (rate float64, err error) {
	sequence, err := o.sequence()
	if err != nil {
		return 0, err
	}
	if err := b.world.Daemon.Stop(ctx); err != nil {
		return 0, err
	}
	if err := errors.Join(b.bucket.empty(), b.forgetStore()); err != nil {
		return 0, err
	}
	if err := os.Truncate(b.world.Path(b.world.Daemon.LogFile), 0); err != nil {
		return 0, err
	}
	if err := b.world.Daemon.Start(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	done := make(chan error, 1)
	var u uploaded
	go func() {
		u, err = b.uploaded(ctx, o.id, sequence)
		done <- err
	}()
	answered, asked := 0.0, 0.0
	for {
		rate, _, err := n.requests(ctx, neighbourStep)
		if err != nil {
			return 0, err
		}
		select {
		case err := <-done:
			if err != nil || asked == 0 {
				return 0, errors.Join(err, fmt.Errorf("the upload took %v only", time.Since(began)))
			}
			fmt.Fprintf(os.Stderr, "bench: beside an upload of %.0f MB in %v: %.0f a second\n", u.sent/1e6, u.took, answered/asked)
			return answered / asked, nil
		default:
			answered, asked = answered+rate, asked+1
		}
	}
}

// empty takes all objects out of the bucket.
func (k *bucket) empty() error {
	return errors.Join(os.RemoveAll(filepath.Join(k.data, bucketName, "snapshots")))
}

// forgetStore has the daemon, which doesn't run, know nothing of what was in the store.
func (b *bench) forgetStore() error {
	return os.RemoveAll(b.world.Path(filepath.Join(b.world.DataDir(), ".durable")))
}

// measureStoreWakes compares the first answer of a sleeper that has no copy on the node with that of one by its local snapshot.
func measureStoreWakes(ctx context.Context, b *bench) error {
	for _, s := range []struct {
		mib  int
		goal string
	}{{128, "<= 3"}, {1024, "<= 4"}} {
		if err := b.storeWakes(ctx, s.mib, s.goal); err != nil {
			return fmt.Errorf("%d MiB: %w", s.mib, err)
		}
	}
	return nil
}

func (b *bench) storeWakes(ctx context.Context, mib int, goal string) (err error) {
	all, err := newLoadedAll(ctx, b, []string{flatLoad, flatLoad}, mib)
	defer func() { err = errors.Join(err, closeAll(all)) }()
	if err != nil {
		return err
	}
	var local, store samples
	for i := range b.plan.store.wakes {
		for k := range all {
			far := (i+k)%2 == 0
			n, err := all[k].sequence()
			if err != nil {
				return err
			}
			if _, err := b.uploaded(ctx, all[k].id, n); err != nil {
				return err
			}
			if far {
				if err := os.RemoveAll(filepath.Join(all[k].local(), strconv.Itoa(n))); err != nil {
					return err
				}
			}
			took, err := all[k].wakeFar(ctx, far)
			if err != nil {
				return err
			}
			if far {
				store.add(took)
			} else {
				local.add(took)
			}
		}
	}
	at := fmt.Sprint("/", mib)
	b.add("wake_store_over_local"+at, store.median()/local.median(), "ratio", goal, len(store))
	b.add("wake_store_ms_p50"+at, store.median(), "ms", "", len(store))
	b.add("wake_local_ms_p50"+at, local.median(), "ms", "", len(local))
	return nil
}

// wakeFar is a wake until its first answer; then all memory is awaited, and it sleeps again. far: from the store.
func (o *ours) wakeFar(ctx context.Context, far bool) (time.Duration, error) {
	took, t, err := o.wakeNew(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: wake: %w", o.id, err)
	}
	if came := strings.Contains(t.GetDetail(), "came from the store"); came != far {
		return 0, fmt.Errorf("%s: the wake was another: %q", o.id, t.GetDetail())
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(retryEach) {
		s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
		if err != nil {
			return 0, err
		}
		if !isLoading(s) {
			break
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s: its memory is not loaded", o.id)
		}
	}
	_, _, err = o.sleep(ctx)
	return took, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
)

// raw is a sandbox that is handled with runsc alone: what the shim adds is not there.
type raw struct {
	world   *harness.World
	id      string
	dir     string // bundle, image, logs
	address netip.AddrPort
	runsc   *runsc.Client
	thread  *thread // in the world: runsc is started from it
	link    *network.Link
	pod     harness.Pod
	group   *cgroup.Group
	client  *client
	images  int
	step    func(name string, took time.Duration) // told of each; set by its user
}

// timed runs one step.
func (r *raw) timed(name string, act func() error) error {
	began := time.Now()
	err := act()
	r.step(name, time.Since(began))
	return err
}

func (r *raw) bundle() string { return filepath.Join(r.dir, "bundle") }
func (r *raw) image() string  { return filepath.Join(r.dir, fmt.Sprint("image-", r.images)) }

// newRaw starts a sandbox like that of o, which must be awake.
func newRaw(ctx context.Context, b *bench, o *ours) (_ *raw, err error) {
	r := &raw{world: b.world, id: "raw-" + o.id, dir: filepath.Join(b.world.Dir, "raw-"+o.id)}
	r.step = func(string, time.Duration) {}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("raw: %w", err), r.close())
		}
	}()
	if r.thread, err = newThread(b.world.Enter); err != nil {
		return r, err
	}
	if r.client, err = newClient(b.world.EnterClient); err != nil {
		return r, err
	}
	for _, act := range []func(context.Context, *ours) error{r.makeLink, r.makeBundle, r.start} {
		if err := act(ctx, o); err != nil {
			return r, err
		}
	}
	return r, nil
}

// makeLink puts it behind the same kind of link, whose gate stays open.
func (r *raw) makeLink(ctx context.Context, _ *ours) (err error) {
	if r.pod, err = r.world.NewPod(ctx, r.id); err != nil {
		return err
	}
	ip, err := netip.ParseAddr(r.pod.IP)
	if err != nil {
		return err
	}
	r.address = netip.AddrPortFrom(ip, port)
	if _, err := r.world.Output(ctx, "ip", "netns", "add", r.inner()); err != nil {
		return err
	}
	outside := r.world.Path(r.pod.Path)
	attachment, err := network.Capture(ctx, outside)
	if err != nil {
		return err
	}
	r.link, err = network.Open(ctx, network.Options{
		Pod: outside, Inner: r.world.Path("/run/netns/" + r.inner()), Attachment: attachment,
	})
	return err
}

func (r *raw) inner() string { return r.id + "-inner" }

// start runs it and waits until it answers.
func (r *raw) start(ctx context.Context, _ *ours) error {
	if err := r.link.PrepareInner(ctx); err != nil {
		return err
	}
	if err := r.runsc.Create(ctx, r.id, runsc.CreateOptions{Bundle: r.bundle()}); err != nil {
		return err
	}
	if err := r.runsc.Start(ctx, r.id); err != nil {
		return err
	}
	if err := r.link.Connect(ctx); err != nil {
		return err
	}
	_, err := r.client.again(ctx, r.address)
	return err
}

// wake is create and restore, until a client that asks all the while has its answer.
func (r *raw) wake(ctx context.Context) (time.Duration, error) {
	if err := r.link.PrepareInner(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.restore(ctx); err != nil {
			cancel(err)
		}
	}()
	at, err := r.client.again(ctx, r.address)
	<-done
	return at.Sub(began), errors.Join(err, context.Cause(ctx))
}

func (r *raw) restore(ctx context.Context) error {
	err := r.timed("wake/create", func() error {
		return r.runsc.Create(ctx, r.id, runsc.CreateOptions{Bundle: r.bundle(), PidFile: filepath.Join(r.dir, "pid")})
	})
	if err != nil {
		return err
	}
	return r.timed("wake/restore", func() error {
		return r.runsc.Restore(ctx, r.id, runsc.RestoreOptions{Bundle: r.bundle(), ImagePath: r.image()})
	})
}

// sleep is pause, checkpoint, fsync and delete.
func (r *raw) sleep(ctx context.Context) (time.Duration, error) {
	before := r.image()
	r.images++
	began := time.Now()
	for _, step := range []struct {
		name string
		act  func() error
	}{
		{"hibernate/pause", func() error { return r.runsc.Pause(ctx, r.id) }},
		{"hibernate/checkpoint", func() error { return r.checkpoint(ctx) }},
		{"hibernate/fsync", func() error { return syncAll(r.image()) }},
		{"hibernate/delete", func() error { return r.delete(ctx) }},
	} {
		if err := r.timed(step.name, step.act); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	return took, os.RemoveAll(before)
}

func (r *raw) checkpoint(ctx context.Context) error {
	if err := os.Mkdir(r.image(), 0o700); err != nil {
		return err
	}
	return r.runsc.Checkpoint(ctx, r.id, runsc.CheckpointOptions{ImagePath: r.image()})
}

// delete ends the sandbox, and removes what runsc leaves of its writable layer: the next create would be refused.
func (r *raw) delete(ctx context.Context) error {
	err := r.runsc.Delete(ctx, r.id, true)
	left, _ := filepath.Glob(r.world.Path(filepath.Join(r.rootfs(), ".gvisor.filestore.*")))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func syncAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range append(entries, nil) {
		path := dir
		if name != nil {
			path = filepath.Join(dir, name.Name())
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("fsync %s: %w", path, err)
		}
	}
	return nil
}

// close takes everything down, as much of it as there is.
func (r *raw) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if r.runsc != nil {
		errs = append(errs, r.delete(ctx), r.unmount(ctx))
	}
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	if r.group != nil {
		errs = append(errs, r.group.Delete())
	}
	if r.pod.Path != "" {
		errs = append(errs, r.world.RemovePod(ctx, r.pod))
		_, err := r.world.Output(ctx, "ip", "netns", "delete", r.inner())
		errs = append(errs, err)
	}
	if r.client != nil {
		r.client.close()
	}
	if r.thread != nil {
		r.thread.close()
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// runner starts runsc as an inhabitant of the world.
type runner struct {
	world  *harness.World
	thread *thread
}

// Run implements runsc.Runner.
func (r runner) Run(ctx context.Context, cmd *exec.Cmd) (err error) {
	r.world.Adopt(cmd)
	r.thread.do(func() { err = runsc.ExecRunner{}.Run(ctx, cmd) })
	return err
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// measureTrue compares `ctr run` of a program that ends at once with `runsc run` of the same bundle: the same flags, root
// filesystem and control group, which exists in both cases only for as long as the container. The two take turns.
func measureTrue(ctx context.Context, b *bench) (err error) {
	thread, err := newThread(b.world.Enter)
	if err != nil {
		return err
	}
	defer thread.close()
	p := &plainRun{world: b.world, thread: thread, dir: filepath.Join(b.world.Dir, "plain")}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.prepare(ctx, b); err != nil {
		return err
	}
	stub, err := installStub(b.world.Dir)
	if err != nil {
		return err
	}
	var shim, plain, floor, record, ratios samples
	for i := -1; i < b.plan.trues; i++ { // the first warms both up
		a, err := timed(func() error { return p.throughShim(ctx, i) })
		if err != nil {
			return err
		}
		c, err := timed(func() error { return p.alone(ctx, i) })
		if err != nil {
			return err
		}
		d, err := timed(func() error { return p.record(ctx, i) })
		if err != nil {
			return err
		}
		e, err := timed(func() error { return p.throughStub(ctx, stub, i) })
		if err != nil {
			return err
		}
		if i >= 0 {
			shim.add(a)
			record.add(d)
			floor.add(e)
			plain.add(c)
			ratios = append(ratios, a.Seconds()/c.Seconds())
		}
	}
	b.add("run_true_over_runsc", ratios.median(), "ratio", "<= 1.3", len(ratios))
	b.addStage("run_true_ms/ctr", shim.median(), len(shim))
	b.addStage("run_true_ms/runsc", plain.median(), len(plain))
	b.addStage("run_true_ms/record", record.median(), len(record))
	b.addStage("run_true_ms/stub", floor.median(), len(floor))
	return nil
}

func timed(act func() error) (time.Duration, error) {
	began := time.Now()
	err := act()
	return time.Since(began), err
}

// plainRun runs a bundle without a shim.
type plainRun struct {
	world  *harness.World
	thread *thread
	dir    string
	runsc  string
	flags  []string
	netns  bool
}

// program is what both run, in the test server's image, which has it.
var program = []string{"/bin/true"}

// prepare takes the specification and the flags from a container under the shim.
func (p *plainRun) prepare(ctx context.Context, b *bench) error {
	const id = "model"
	c := harness.Container{ID: id, Image: image, Args: []string{"/bin/sleep", "1000"}, Detach: true}
	if _, err := p.world.Run(ctx, c); err != nil {
		return err
	}
	record, err := p.world.Record(id)
	if err != nil {
		return err
	}
	var spec specs.Spec
	var state struct {
		Runsc string   `json:"runsc"`
		Flags []string `json:"runsc_flags"`
	}
	err = errors.Join(readJSON(filepath.Join(record.Bundle, "hibernate/sandbox/config.json"), &spec),
		readJSON(filepath.Join(record.Bundle, "hibernate/state.json"), &state))
	if err != nil {
		return err
	}
	p.runsc, p.flags = state.Runsc, state.Flags
	if err := p.world.Remove(ctx, id); err != nil {
		return err
	}
	return p.writeBundle(ctx, &spec)
}

func (p *plainRun) writeBundle(ctx context.Context, spec *specs.Spec) error {
	rootfs := filepath.Join(p.dir, "rootfs")
	for _, dir := range []string{rootfs, filepath.Join(p.dir, "root")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if _, err := p.world.Output(ctx, "ip", "netns", "add", "plain"); err != nil {
		return err
	}
	p.netns = true
	spec.Root.Path, spec.Process.Args = rootfs, program
	spec.Linux.CgroupsPath = filepath.Join("/", p.world.Name, "plain")
	for i, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = "/run/netns/plain"
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "config.json"), data, 0o600); err != nil {
		return err
	}
	_, err = p.world.Ctr(ctx, "images", "mount", "--rw", harness.Reference(image), rootfs)
	return err
}

// throughShim is `ctr run --rm`, from its start to its end.
func (p *plainRun) throughShim(ctx context.Context, i int) error {
	return p.ctr(ctx, p.world.RunArgs(harness.Container{ID: fmt.Sprint("true-", i+1), Image: image, Args: program, Flags: []string{"--rm"}})...)
}

// throughStub is the same with a runtime that does nothing: what no shim can go below.
func (p *plainRun) throughStub(ctx context.Context, stub string, i int) error {
	c := harness.Container{ID: fmt.Sprint("stub-", i+1), Image: image, Args: program, Flags: []string{"--rm"}, Runtime: stub}
	return p.ctr(ctx, p.world.RunArgs(c)...)
}

// record makes a container that is never run, and removes it: what ctr and containerd do of the above without any shim.
func (p *plainRun) record(ctx context.Context, i int) error {
	c := harness.Container{ID: fmt.Sprint("record-", i+1), Image: image, Args: program}
	if err := p.ctr(ctx, append([]string{"containers", "create"}, p.world.RunArgs(c)[1:]...)...); err != nil {
		return err
	}
	return p.ctr(ctx, "containers", "rm", c.ID)
}

func (p *plainRun) ctr(ctx context.Context, args ...string) error {
	return p.exec(ctx, p.world.Program("ctr"), append([]string{"--address", p.world.Address(), "--namespace", p.world.Name}, args...)...)
}

// alone is `runsc run`, which deletes at the end, too.
func (p *plainRun) alone(ctx context.Context, i int) error {
	args := append([]string{"--root=" + filepath.Join(p.dir, "root")}, p.flags...)
	return p.exec(ctx, p.runsc, append(args, "run", "--bundle="+p.dir, fmt.Sprint("plain-", i+1))...)
}

// exec runs a program from a thread in the world, with no helper in between.
func (p *plainRun) exec(ctx context.Context, name string, args ...string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr, cmd.WaitDelay = &stderr, time.Second
	p.world.Adopt(cmd)
	p.thread.do(func() { err = cmd.Run() })
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, stderr.String())
	}
	return nil
}

func (p *plainRun) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if !p.netns {
		return nil
	}
	_, err := p.world.Ctr(ctx, "images", "unmount", "--rm", filepath.Join(p.dir, "rootfs"))
	_, e := p.world.Output(ctx, "ip", "netns", "delete", "plain")
	return errors.Join(err, e)
}

package executors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// act does one random thing.
func (r *run) act(ctx context.Context) {
	i := r.r.IntN(2)
	if r.r.IntN(2) == 0 { // what happens where it is, tells more
		i = r.where()
	}
	acts := []struct {
		share int // of all
		do    func(context.Context, int)
	}{
		{24, r.move}, {8, r.moveByCommand}, {6, r.beginBeside}, {8, r.sleepAndWake}, {6, r.fork}, {3, func(ctx context.Context, _ int) { r.did("count"); r.count(ctx) }},
		{9, r.takeOver}, {12, r.partition}, {10, r.stopPart}, {6, r.stopNode}, {14, r.killPart}, {8, r.outage},
	}
	all := 0
	for _, a := range acts {
		all += a.share
	}
	for n := r.r.IntN(all); ; acts = acts[1:] {
		if n -= acts[0].share; n < 0 {
			acts[0].do(ctx, i)
			return
		}
	}
}

// walk has something happen to the workload beside the next acts, one thing at a time.
func (r *run) walk(ctx context.Context, what string, do func(context.Context)) {
	if !r.walking.TryLock() {
		r.did("%s: not now", what)
		return
	}
	r.did("%s", what)
	r.doing.Go(func() {
		defer r.walking.Unlock()
		do(ctx)
	})
}

// later has something be over after up to most.
func (r *run) later(ctx context.Context, most time.Duration, over func()) {
	d := most/8 + time.Duration(r.r.Int64N(int64(most-most/8)))
	r.doing.Go(func() {
		sleep(ctx, d)
		over()
	})
}

// move stops the workload where it is, and starts it on the other node, at the same moment or after that.
func (r *run) move(ctx context.Context, _ int) {
	beside := r.r.IntN(3) == 0
	r.walk(ctx, fmt.Sprintf("move (at once %t)", beside), func(ctx context.Context) {
		from := r.where()
		leave := func() {
			for _, b := range r.at(from, r.identity) {
				r.stop(ctx, b)
			}
		}
		if beside {
			done := make(chan struct{})
			go func() { defer close(done); leave() }()
			r.try(ctx, 1-from)
			<-done
			return
		}
		leave()
		r.try(ctx, 1-from)
	})
}

// where is the node on which the workload was heard last, and else has a container.
func (r *run) where() (has int) {
	last, _ := r.Witness.Last(r.identity)
	for i, n := range r.nodes {
		if len(r.at(i, r.identity)) == 0 {
			continue
		}
		if has = i; n.name == last.Place.Node {
			break
		}
	}
	return has
}

// stop stops a container as an engine does, and removes it.
func (r *run) stop(ctx context.Context, b *box) {
	ctx, cancel := context.WithTimeout(ctx, cmdLimit)
	defer cancel()
	n := r.nodes[b.node]
	if n.World.Kill(ctx, b.id, "TERM") == nil {
		waiting, over := context.WithTimeout(ctx, 6*time.Second) // an engine's grace
		_ = n.WaitTask(waiting, b.id, "STOPPED")
		over()
	}
	_ = r.remove(ctx, b)
}

// try starts the workload on a node, as an orchestrator does: again, if it can't be yet.
func (r *run) try(ctx context.Context, i int) {
	for range 3 {
		if len(r.at(i, r.identity)) > 0 {
			for _, b := range r.at(i, r.identity) {
				_ = r.remove(ctx, b)
			}
		}
		err := r.start(ctx, i, r.identity)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.did("start on %s: %.300s", r.nodes[i].name, err)
		sleep(ctx, 300*time.Millisecond)
	}
}

// moveByCommand has hibernatectl move it.
func (r *run) moveByCommand(ctx context.Context, _ int) {
	r.walk(ctx, "hibernatectl move", func(ctx context.Context) {
		from := r.where()
		for _, b := range r.at(from, r.identity) {
			_, err := r.ctl(ctx, from, "--timeout", "10s", "move", b.id, "--to", r.nodes[1-from].name)
			if err != nil {
				r.did("move: %.300s", err)
			}
		}
		r.try(ctx, 1-from)
	})
}

func (r *run) ctl(ctx context.Context, i int, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cmdLimit)
	defer cancel()
	n := r.nodes[i]
	return n.Output(ctx, "hibernatectl", append([]string{"--config", n.ConfigFile()}, args...)...)
}

// beginBeside starts a second container of the identity, wherever the first is.
func (r *run) beginBeside(ctx context.Context, i int) {
	r.walk(ctx, "start on "+r.nodes[i].name, func(ctx context.Context) {
		if err := r.start(ctx, i, r.identity); err != nil {
			r.did("refused: %.300s", err)
		}
	})
}

// sleepAndWake puts it to sleep, or wakes it, wherever it has a container.
func (r *run) sleepAndWake(ctx context.Context, i int) {
	wake := r.r.IntN(2) == 0
	r.walk(ctx, fmt.Sprintf("sleep, or wake (%t) on %s", wake, r.nodes[i].name), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, cmdLimit)
		defer cancel()
		for _, b := range r.at(i, r.identity) {
			if wake {
				_, _ = r.nodes[i].Wake(ctx, b.id)
			} else {
				_, _ = r.nodes[i].Hibernate(ctx, b.id)
			}
		}
	})
}

// fork makes a child where the workload is, and runs it.
func (r *run) fork(ctx context.Context, _ int) {
	r.walk(ctx, "fork", func(ctx context.Context) {
		i := r.where()
		boxes := r.at(i, r.identity)
		last, ok := r.Witness.Last(r.identity)
		if len(boxes) == 0 || !ok {
			return
		}
		r.mu.Lock()
		child := fork{fmt.Sprint(r.identity, "-child", len(r.forks)), last}
		r.mu.Unlock()
		if _, err := r.ctl(ctx, i, "fork", boxes[0].id, child.identity); err != nil {
			r.did("fork: %.300s", err)
			return
		}
		r.mu.Lock()
		r.forks = append(r.forks, child)
		r.mu.Unlock()
		if err := r.start(ctx, i, child.identity); err != nil {
			r.did("start of %s: %.300s", child.identity, err)
		}
	})
}

// takeOver has a node lose its power. The other one is to take over, and the node is booted again after a while.
func (r *run) takeOver(ctx context.Context, i int) {
	n := r.nodes[i]
	if !r.may(i, func(b *body) bool { return !b.down && !b.stopped }, func(b *body) { b.down = true }) {
		r.did("%s is ill already", n.name)
		return
	}
	r.did("power of %s fails", n.name)
	if err := n.Reboot(ctx, false); err != nil {
		r.did("reboot: %.300s", err)
	}
	for _, b := range r.boxes {
		if b.node == i {
			removeGroups(n, b.id)
		}
	}
	r.mu.Lock()
	r.bodies[i].shim, r.bodies[i].daemon = false, true
	r.mu.Unlock()
	r.walk(ctx, "take over from "+n.name, func(ctx context.Context) { r.try(ctx, 1-i) })
	r.later(ctx, 8*time.Second, func() { r.boot(ctx, i) })
}

// boot starts a node's programs.
func (r *run) boot(ctx context.Context, i int) {
	n := r.nodes[i]
	r.did("%s boots", n.name)
	if n.Containerd.Pid() == 0 {
		if err := n.Containerd.Start(ctx); err != nil {
			r.did("containerd: %.300s", err)
		}
	}
	r.startDaemon(ctx, i)
	r.mu.Lock()
	r.bodies[i].down = false
	r.mu.Unlock()
}

func (r *run) startDaemon(ctx context.Context, i int) {
	if n := r.nodes[i]; n.Daemon.Pid() == 0 {
		if err := n.Daemon.Start(ctx); err != nil {
			r.did("daemon: %.300s", err)
			return
		}
	}
	r.mu.Lock()
	r.bodies[i].daemon = false
	r.mu.Unlock()
}

// may does something to a node's state, if that allows it.
func (r *run) may(i int, when func(*body) bool, then func(*body)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !when(&r.bodies[i]) {
		return false
	}
	then(&r.bodies[i])
	return true
}

// elsewhere has the other node start the workload, as an orchestrator does that has no news of the first. In most cases nothing else happens meanwhile.
func (r *run) elsewhere(ctx context.Context, i int) {
	if r.where() != i || r.r.IntN(5) == 0 {
		return
	}
	r.walk(ctx, "start on "+r.nodes[1-i].name+", as nothing is heard of the other", func(ctx context.Context) { r.try(ctx, 1-i) })
	if r.r.IntN(3) > 0 {
		r.pause(ctx, 2*takeover)
	}
}

// partition cuts a node off the store, the other node, or both: connections are reset, or nothing comes through.
func (r *run) partition(ctx context.Context, i int) {
	n := r.nodes[i]
	what := r.r.IntN(4)
	hold := r.r.IntN(2) == 0
	set := func(on bool) {
		if what != 0 {
			bar(n.store.Cut, n.store.Hold, hold, on)
		}
		if what == 0 || what == 3 {
			bar(r.nodes[0].peer.Cut, r.nodes[0].peer.Hold, hold, on)
			bar(r.nodes[1].peer.Cut, r.nodes[1].peer.Hold, hold, on)
		}
	}
	r.did("partition of %s (%d, silent %t)", n.name, what, hold)
	set(true)
	r.later(ctx, 10*time.Second, func() { set(false); r.did("%s is joined again", n.name) })
	r.elsewhere(ctx, i)
}

func bar(cut, hold func(bool), silent, on bool) {
	if silent {
		hold(on)
	} else {
		cut(on)
	}
}

// The parts of a node.
const (
	thDaemon = iota
	thShim
	thSandbox
	thContainerd
	parts
)

var partNames = [parts]string{"daemon", "shim", "sandbox", "containerd"}

// part finds one's process; 0: there is none, or it may not be harmed now.
func (r *run) part(ctx context.Context, i, what int) (pid int) {
	n := r.nodes[i]
	healthy := func(b *body) bool { return !b.down && !b.stopped }
	switch what {
	case thDaemon:
		if r.may(i, func(b *body) bool { return healthy(b) && !b.shim && !b.daemon }, func(b *body) { b.daemon = true }) {
			return n.Daemon.Pid()
		}
	case thContainerd:
		if r.may(i, healthy, func(*body) {}) {
			return n.Containerd.Pid()
		}
	default:
		for _, b := range r.at(i, r.identity) {
			rec, err := n.Record(b.id)
			if err != nil || !rec.Alive() {
				continue
			}
			if what == thShim {
				if r.may(i, func(b *body) bool { return healthy(b) && !b.daemon }, func(b *body) { b.shim = true }) {
					return rec.Pid
				}
				return 0
			}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			s, err := n.Status(ctx, b.id)
			if err == nil && r.may(i, healthy, func(*body) {}) {
				return int(s.GetSandboxPid())
			}
		}
	}
	return 0
}

// stopPart stops one process of a node, and has it go on.
func (r *run) stopPart(ctx context.Context, i int) {
	what := r.r.IntN(parts)
	pid := r.part(ctx, i, what)
	if pid == 0 {
		r.did("no %s to stop on %s", partNames[what], r.nodes[i].name)
		return
	}
	r.did("SIGSTOP to the %s of %s", partNames[what], r.nodes[i].name)
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	r.later(ctx, 9*time.Second, func() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		r.did("SIGCONT to the %s of %s", partNames[what], r.nodes[i].name)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch what {
		case thDaemon:
			r.bodies[i].daemon = false
		case thShim:
			r.bodies[i].shim = false
		}
	})
	r.elsewhere(ctx, i)
}

// stopNode stops all of a node, as a hypervisor does.
func (r *run) stopNode(ctx context.Context, i int) {
	n := r.nodes[i]
	if !r.may(i, func(b *body) bool { return !b.down && !b.stopped && !b.shim }, func(b *body) { b.stopped = true }) {
		r.did("%s is ill already", n.name)
		return
	}
	r.did("%s is stopped", n.name)
	if err := n.Stop(); err != nil {
		r.did("stop: %.300s", err)
	}
	r.later(ctx, 9*time.Second, func() {
		r.mu.Lock()
		r.thaws = append(r.thaws, Thaw{n.name, time.Now()})
		r.bodies[i].stopped = false
		r.mu.Unlock()
		if err := n.Continue(); err != nil {
			r.did("continue: %.300s", err)
		}
		r.did("%s goes on", n.name)
	})
	r.elsewhere(ctx, i)
}

// killPart kills one process of a node. Programs are started again after a while, as systemd does.
func (r *run) killPart(ctx context.Context, i int) {
	what := r.r.IntN(parts)
	n := r.nodes[i]
	pid := r.part(ctx, i, what)
	if pid == 0 {
		r.did("no %s to kill on %s", partNames[what], n.name)
		return
	}
	r.did("SIGKILL to the %s of %s", partNames[what], n.name)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	switch what {
	case thDaemon:
		r.later(ctx, 3*time.Second, func() { r.again(ctx, i, n.Daemon, func() { r.startDaemon(ctx, i) }) })
	case thContainerd:
		r.later(ctx, 3*time.Second, func() {
			r.again(ctx, i, n.Containerd, func() {
				if err := n.Containerd.Start(ctx); err != nil {
					r.did("containerd: %.300s", err)
				}
			})
		})
	}
}

// again starts a program that was killed, unless the whole node is down: then its boot does.
func (r *run) again(ctx context.Context, i int, p *harness.Program, start func()) {
	for range 50 { // what was killed is frozen, too, and ends with the thaw
		if r.may(i, func(b *body) bool { return b.down }, func(*body) {}) {
			return
		}
		if p.Pid() == 0 && r.may(i, func(b *body) bool { return !b.stopped }, func(*body) {}) {
			start()
			return
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// outage kills the store's server, and starts it again.
func (r *run) outage(ctx context.Context, _ int) {
	r.mu.Lock()
	served := r.served
	r.served = false
	r.mu.Unlock()
	if !served {
		r.did("the store is away already")
		return
	}
	r.did("the store's server dies")
	r.Store.Server.Kill()
	r.later(ctx, 6*time.Second, func() { r.serve() })
}

func (r *run) serve() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served {
		return
	}
	err := r.Store.Server.Start()
	r.served = err == nil
}

// podIs says whether a pod's namespace is there still.
func podIs(n *node, p harness.Pod) bool {
	_, err := os.Lstat(n.Path(p.Path))
	return err == nil
}

// removeStreams removes the FIFOs that ctr has made for shims that died: it does so only with a task.
func removeStreams(n *node, id string) (err error) {
	found, _ := filepath.Glob(n.Path("/run/containerd/fifo/*/" + id + "-std*"))
	for _, f := range found {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(f)))
	}
	return err
}

// removeGroups removes the control groups of a container that ended with its machine: they have the name of containerd's namespace, which both nodes share, so
// that the reboot of one leaves them.
func removeGroups(n *node, id string) {
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		tops, _ := filepath.Glob(filepath.Join(pattern, n.Namespace, id))
		for _, top := range tops {
			var all []string
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, path)
				}
				return nil
			})
			slices.Reverse(all)
			for _, dir := range all {
				_ = os.Remove(dir)
			}
		}
	}
}

package conformance

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"github.com/hibernate-runtime/hibernate/api/rights"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// daemon plays the part of hibernated that gives rights to run.
type daemon struct {
	t      *testing.T
	runDir string

	mu     sync.Mutex // guards the fields below
	answer *rightsv1.ClaimResponse
	asked  []*rightsv1.ClaimRequest
	unused []string // grants under which nothing has run
}

func (n *node) daemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, runDir: n.RunDir(), answer: &rightsv1.ClaimResponse{Class: rights.NoStore}}
	l, err := net.Listen("unix", filepath.Join(n.RunDir(), "api.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	rightsv1.RegisterTTRPCRightsService(s, d)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		_ = os.Remove(filepath.Join(n.RunDir(), "lease.json"))
	})
	return d
}

func (d *daemon) Claim(_ context.Context, r *rightsv1.ClaimRequest) (*rightsv1.ClaimResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, r)
	return d.answer, nil
}

func (d *daemon) Unused(_ context.Context, r *rightsv1.UnusedRequest) (*rightsv1.UnusedResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unused = append(d.unused, r.GetGrant())
	return &rightsv1.UnusedResponse{}, nil
}

func (d *daemon) Rootfs(context.Context, *rightsv1.RootfsRequest) (*rightsv1.RootfsResponse, error) {
	return &rightsv1.RootfsResponse{Problem: "there is no containerd"}, nil
}

// awaitUnused waits until what was given last is given back.
func (d *daemon) awaitUnused() {
	d.t.Helper()
	grant := d.awaitAsked().GetGrant()
	eventually(d.t, "it is told that nothing ran", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Contains(d.unused, grant)
	})
}

// mustBeUsed looks that nobody has said of what was given last that nothing ran.
func (d *daemon) mustBeUsed() {
	d.t.Helper()
	grant := d.awaitAsked().GetGrant()
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.unused, grant) {
		d.t.Error("it is told that nothing ran")
	}
}

// answers changes what the daemon says from now on, and forgets who has asked.
func (d *daemon) answers(a *rightsv1.ClaimResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer, d.asked = a, nil
}

// gives is answers with the right of an epoch.
func (d *daemon) gives(epoch uint64, leased bool) {
	d.answers(&rightsv1.ClaimResponse{Epoch: epoch, Whole: true, Leased: leased})
}

func (d *daemon) refuses(class string) {
	d.answers(&rightsv1.ClaimResponse{Class: class, Message: "node-b runs it, and lives"})
}

// awaitAsked waits until somebody has asked, and returns the last question.
func (d *daemon) awaitAsked() (r *rightsv1.ClaimRequest) {
	d.t.Helper()
	eventually(d.t, "a claim", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.asked) > 0 {
			r = d.asked[len(d.asked)-1]
		}
		return r != nil
	})
	return r
}

// lease writes the node's lease, by times from now.
func (d *daemon) lease(sleep, end time.Duration) {
	d.t.Helper()
	now := rights.SinceBoot()
	if err := rights.WriteLease(d.runDir, rights.Lease{Node: "a", Sleep: now + sleep, End: now + end}); err != nil {
		d.t.Fatal(err)
	}
}

func (c *container) becomes(state string) {
	c.t.Helper()
	eventually(c.t, "it is "+state, func() bool { return c.workload() == state })
}

func (c *container) tryStart() error {
	_, err := c.task.Start(c.ctx(), &taskapi.StartRequest{ID: c.id})
	return errgrpc.ToNative(err)
}

// notStarted looks that a start was refused, and that nothing of it is left.
func (c *container) notStarted(err error, words ...string) {
	c.t.Helper()
	if err == nil {
		c.t.Fatal("it was started")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			c.t.Errorf("%q is missing in: %v", w, err)
		}
	}
	c.delete("")
	c.shutdown()
}

// A workload with an identity runs only by the daemon's leave.
func TestRights(t *testing.T) {
	n := newNode(t, nil)
	d := n.daemon(t)
	fresh := func(t *testing.T, pairs ...string) *container {
		t.Helper()
		n.forget(t, "db")
		d.t = t
		return n.create(t, mood{}, identified("db", pairs...))
	}
	check(t, "it is claimed before it runs, and its snapshots are of the epoch", func(t *testing.T) {
		d.gives(7, false)
		c := fresh(t)
		c.start()
		if r := d.awaitAsked(); r.GetWorkload().GetIdentity() != "db" || r.GetWorkload().GetId() != c.id || r.GetWorkload().GetNamespace() != n.Name || r.GetLocalSequence() != 0 {
			t.Errorf("asked for %v", r)
		}
		c.counts(1)
		c.leave()
		head, err := snapshot.ReadHead(n.local("db"))
		if err != nil || head.Epoch != 7 || head.State != snapshot.Asleep || head.Identity != "db" {
			t.Errorf("head %+v, %v", head, err)
		}
		d.gives(9, false)
		c = n.run(t, mood{}, identified("db"))
		if r := d.awaitAsked(); r.GetLocalSequence() != 1 || r.GetLocalEpoch() != 7 {
			t.Errorf("asked for %v", r)
		}
		c.counts(2)
		c.end()
	})
	for _, class := range []string{rights.Owned, rights.Unavailable, rights.Refused} {
		check(t, "a start that is refused: "+class, func(t *testing.T) {
			d.refuses(class)
			c := fresh(t)
			c.notStarted(c.tryStart(), "node-b runs it", "db")
			c = n.create(t, mood{}, identified("db"))
			d.gives(1, false)
			c.start()
			c.counts(1)
			c.end()
		})
	}
	check(t, "a start waits for the right", func(t *testing.T) {
		d.refuses(rights.Owned)
		c := fresh(t)
		go func() {
			d.awaitAsked()
			d.gives(1, false)
		}()
		c.start()
		c.counts(1)
		c.end()
	})
	check(t, "what is killed while its start waits doesn't begin", func(t *testing.T) {
		d.refuses(rights.Owned)
		c := fresh(t)
		s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
		if err != nil || s.GetSandboxPid() == 0 {
			t.Fatal(s, err)
		}
		go func() {
			d.awaitAsked()
			_ = syscall.Kill(int(s.GetSandboxPid()), syscall.SIGKILL)
			c.becomes("ended")
			d.gives(1, false)
		}()
		c.notStarted(c.tryStart(), "has ended")
	})
	check(t, "a wake without the right lets it sleep on", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t)
		c.start()
		c.counts(1)
		c.sleep()
		d.refuses(rights.Owned)
		_, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"})
		if err == nil || !strings.Contains(err.Error(), "node-b runs it") || c.workload() != "asleep" {
			t.Errorf("%v; it is %s", err, c.workload())
		}
		c.began("postponed", "node-b runs it")
		d.gives(1, false)
		c.awaken()
		c.began("restored")
		c.counts(2)
		c.end()
	})
	check(t, "a wake that a person must look at blocks it", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t)
		c.start()
		c.sleep()
		d.refuses(rights.Refused)
		if _, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}); err == nil || c.workload() != "blocked" {
			t.Errorf("%v; it is %s", err, c.workload())
		}
		d.gives(1, false)
		c.rise()
		c.end()
	})
	check(t, "a right under which nothing has run is given back", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t, "on-restore-failure", "block")
		c.start()
		c.counts(1)
		c.sleep()
		d.mustBeUsed()
		image, aside := filepath.Join(n.local("db"), "1", "image"), filepath.Join(t.TempDir(), "image")
		if err := os.Rename(image, aside); err != nil {
			t.Fatal(err)
		}
		d.answers(&rightsv1.ClaimResponse{Epoch: 2, Whole: true})
		if _, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}); err == nil {
			t.Errorf("it was woken: %v", c.lastWake())
		}
		d.awaitUnused()
		c.finish()
	})
	check(t, "what ran on elsewhere is not restored unasked", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t)
		c.start()
		c.counts(1)
		c.sleep()
		d.answers(&rightsv1.ClaimResponse{Epoch: 3, Former: "node-b"})
		c.awaken()
		c.began("cold-started", "node-b", "ran on after")
		c.counts(1)
		if aside, _ := filepath.Glob(filepath.Join(n.local("db"), "quarantine", "1-*.json")); len(aside) != 1 {
			t.Errorf("set aside: %v", aside)
		}
		c.end()
	})
	check(t, "with restore-older it is, and told", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t, "restore-older", "true")
		c.start()
		c.counts(1)
		c.sleep()
		d.answers(&rightsv1.ClaimResponse{Epoch: 3, Former: "node-b"})
		c.awaken()
		c.began("restored-older", "node-b", "ran on after")
		c.counts(2)
		c.end()
	})
	check(t, "a stale snapshot is not restored", func(t *testing.T) {
		d.gives(1, false)
		c := fresh(t)
		c.start()
		c.counts(1)
		c.sleep()
		d.answers(&rightsv1.ClaimResponse{Epoch: 3, Whole: true, Former: "node-b", Generations: []*rightsv1.Generation{{Sequence: 5, Epoch: 2}}})
		_, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}) // nobody serves the store's here
		if err == nil && c.lastWake().GetOutcome() == "restored" {
			t.Errorf("woken: %v", c.lastWake())
		}
		if detail := c.lastWake().GetDetail(); !strings.Contains(detail, "snapshot 1, of epoch 1, is stale: the store's newest is 5, of epoch 2") {
			t.Errorf("told: %s", detail)
		}
		c.finish()
	})
	check(t, "without the daemon nothing is begun where there is a store", func(t *testing.T) {
		d.gives(4, false)
		c := fresh(t)
		c.start()
		c.leave()
		d.answers(nil) // no answer at all
		c = n.create(t, mood{}, identified("db"))
		c.notStarted(c.tryStart(), "daemon", "start hibernated")
		d.gives(4, false)
		c = n.run(t, mood{}, identified("db"))
		c.end()
	})
}

// finish ends a container in whatever state it is.
func (c *container) finish() {
	c.t.Helper()
	_, _ = c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, Signal: uint32(syscall.SIGKILL)})
	c.wait("")
	c.delete("")
	c.shutdown()
}

// A node's lease puts what it has claimed to sleep, and ends what doesn't.
func TestLease(t *testing.T) {
	n := newNode(t, nil)
	d := n.daemon(t)
	begin := func(t *testing.T, o options) *container {
		t.Helper()
		n.forget(t, "db")
		d.t = t
		d.gives(1, true)
		d.lease(time.Hour, time.Hour)
		return n.run(t, mood{}, o)
	}
	check(t, "it sleeps, and wakes when the lease is renewed", func(t *testing.T) {
		c := begin(t, identified("db"))
		c.counts(1)
		d.lease(0, time.Hour)
		c.becomes("asleep")
		if last := c.lastSleep(); last.GetReason() != "lease" || last.GetOutcome() != "slept" {
			t.Errorf("told as %v", last)
		}
		if _, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}); err == nil || !strings.Contains(err.Error(), "lease is over") {
			t.Errorf("a wake without a lease: %v", err)
		}
		d.lease(time.Hour, time.Hour)
		c.becomes("awake")
		c.counts(2)
		c.end()
	})
	check(t, "a container is not started under a lease that is over", func(t *testing.T) {
		n.forget(t, "db")
		d.gives(1, true)
		d.lease(0, time.Hour)
		c := n.create(t, mood{}, identified("db"))
		c.notStarted(c.tryStart(), "lease is over")
	})
	check(t, "what can't sleep is ended with the lease", func(t *testing.T) {
		o := identified("db")
		o.args, o.stdin, o.terminal = sleeper, false, true
		c := begin(t, o)
		d.lease(0, time.Second)
		c.wantExit("", 137)
		if last := c.lastSleep(); last.GetReason() != "lease" || last.GetOutcome() != "fenced" || !strings.Contains(last.GetDetail(), "another node may run it") {
			t.Errorf("told as %v", last)
		}
	})
	check(t, "a lease renewed in time ends nothing", func(t *testing.T) {
		o := identified("db")
		o.args, o.stdin, o.terminal = sleeper, false, true
		c := begin(t, o)
		d.lease(0, 2*time.Second)
		eventually(t, "it is tried", func() bool { return strings.Contains(c.log.text(), "could not be put to sleep") })
		d.lease(time.Hour, time.Hour)
		time.Sleep(2500 * time.Millisecond) // the former lease's end
		if s := c.workload(); s != "awake" {
			t.Errorf("it is %s", s)
		}
		c.end()
	})
	check(t, "a sleeper sleeps on", func(t *testing.T) {
		c := begin(t, identified("db"))
		c.counts(1)
		c.sleep()
		d.lease(-time.Second, -time.Second)
		time.Sleep(1500 * time.Millisecond)
		if s := c.workload(); s != "asleep" {
			t.Errorf("it is %s", s)
		}
		c.end()
	})
}

// A copy that another node's has overtaken is ended, and what the node has of it set aside.
func TestFence(t *testing.T) {
	n := newNode(t, nil)
	d := n.daemon(t)
	moods(t, func(t *testing.T, m mood) {
		check(t, "an overtaken copy", func(t *testing.T) {
			n.forget(t, "db")
			d.gives(5, false)
			c := n.run(t, m, identified("db"))
			c.counts(1)
			c.sleep()
			c.awaken()
			c.nap()
			if _, err := c.shim.Fence(c.ctx(), &shimv1.FenceRequest{Reason: "node-b has it", Epoch: 4}); err == nil {
				t.Error("it was ended by a lower epoch")
			}
			if _, err := c.shim.Fence(c.ctx(), &shimv1.FenceRequest{Reason: "node-b has it", Epoch: 5}); err != nil {
				t.Fatal(err)
			}
			c.wantExit("", 137)
			if last := c.lastSleep(); last.GetReason() != "overtaken" || last.GetOutcome() != "fenced" || last.GetDetail() != "node-b has it" {
				t.Errorf("told as %v", last)
			}
			if aside, _ := filepath.Glob(filepath.Join(n.local("db"), "quarantine", "*.json")); len(aside) != 1 {
				t.Errorf("set aside: %v", aside)
			}
			if head, err := snapshot.ReadHead(n.local("db")); err != nil || head.State == snapshot.Asleep {
				t.Errorf("the head says %s, %v", head.State, err)
			}
		})
	})
	check(t, "without an identity nothing overtakes", func(t *testing.T) {
		c := n.run(t, mood{}, options{args: sleeper})
		if _, err := c.shim.Fence(c.ctx(), &shimv1.FenceRequest{Reason: "node-b has it"}); err == nil {
			t.Error("it was ended")
		}
		c.end()
	})
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Start runs the created container, or wakes what an earlier shim left asleep under the same name.
func (w *Workload) Start(ctx context.Context) error {
	w.mu.Lock()
	c := w.root()
	_, err := c.state.Next(lifecycle.Start)
	asleep := w.state == lifecycle.Asleep || w.state == lifecycle.Blocked
	told := make(chan struct{})
	if err == nil {
		c.starting = told
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	err = w.launchInit(ctx, asleep)
	if err != nil {
		w.mu.Lock()
		if !w.ran {
			w.dropRight()
		}
		w.mu.Unlock()
	}
	if err == nil {
		w.opts.Publish(runtime.TaskStartEventTopic, &events.TaskStart{ContainerID: c.ID, Pid: uint32(w.holder.Pid)})
	}
	close(told)
	if err != nil {
		return err
	}
	w.mu.Lock()
	c.state, err = c.state.Next(lifecycle.Start)
	w.announce(nil)
	w.mu.Unlock()
	if err != nil { // it has ended already
		return nil
	}
	w.watchLink()
	w.startForwarding(ctx)
	w.startProbing(ctx)
	w.offerAgain(ctx)
	if !w.opts.Daemon.Connected() {
		w.startDraining() // whoever waited for an earlier shim
	}
	if w.hooks != nil {
		return w.runHooks(ctx, w.hooks.Poststart, specs.StateRunning)
	}
	return nil
}

func (w *Workload) launchInit(ctx context.Context, asleep bool) error {
	if w.identity != "" {
		var err error
		if asleep, err = w.settleStart(ctx); err != nil {
			return err
		}
	}
	if asleep && w.export == nil {
		w.foresee(ctx)
	}
	if err := w.joinNetwork(ctx); err != nil {
		return err
	}
	if !asleep {
		return w.startFresh(ctx)
	}
	if err := w.importCheckpoint(ctx); err != nil {
		return err
	}
	if w.export == nil && w.gather() {
		return nil
	}
	_, err := w.Wake(ctx, byStart, "")
	return err
}

func (w *Workload) startFresh(ctx context.Context) error {
	if err := w.bootConfigured(ctx); err != nil {
		return err
	}
	if err := w.prepareInner(ctx); err != nil {
		return err
	}
	if err := w.local.SetState(ctx, snapshot.Awake); err != nil { // before anything runs: an earlier snapshot must not run beside it
		return fmt.Errorf("snapshots: %w", err)
	}
	forgotten := make(chan struct{}) // on a node with many connections it takes a while, as runsc does
	go func() {
		defer close(forgotten)
		w.forget(ctx)
	}()
	w.runs()
	err := w.runsc.Start(ctx, w.opts.ID)
	<-forgotten
	if err != nil {
		return err
	}
	if err := w.openGate(ctx); err != nil {
		return err
	}
	w.background.Go(w.quicken)
	return nil
}

// joinNetwork puts the sandbox behind its inner link. Engines set up the pod's network between Create and Start, so
// this is the first moment that it can be read.
func (w *Workload) joinNetwork(ctx context.Context) error {
	if w.fixedReason != nil || w.link != nil {
		return nil
	}
	attachment, err := network.Capture(ctx, w.holder.namespace(), w.captureOptions()...)
	var mesh *network.ErrMesh
	switch {
	case errors.Is(err, network.ErrNoNetwork):
		return nil
	case errors.As(err, &mesh):
		return w.leaveLink(ctx, reason("mesh", mesh.Error()))
	case err != nil:
		return fmt.Errorf("the pod's network: %w", err)
	case len(attachment.Others) > 0:
		return w.leaveLink(ctx, reason("interfaces", fmt.Sprintf("the pod has further interfaces with addresses (%s), and the "+
			"inner link carries only those of %s", strings.Join(attachment.Others, ", "), attachment.Interface)))
	}
	origin, err := w.findOrigin()
	if err != nil {
		return err
	}
	if origin != nil {
		attachment.Follow(&origin.attachment)
	}
	link, err := network.Open(ctx, network.Options{
		Pod: w.holder.namespace(), Inner: w.innerPath(), Attachment: attachment, NoFastPath: w.config.FastPath == config.FastPathOff,
		Ignore: ignored(w.config.Ignore), Probes: w.questions().sources(),
	})
	switch {
	case errors.Is(err, network.ErrShared):
		return w.leaveLink(ctx, reason("namespace-shared", err.Error()))
	case err != nil:
		return fmt.Errorf("inner link: %w", err)
	}
	gate, err := link.Gate(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("inner link: %w", err), link.Close())
	}
	w.gateMu.Lock()
	w.link, w.attachment, w.origin = link, attachment, origin
	w.gateMu.Unlock()
	w.mu.Lock()
	w.gate = gate.Position.String()
	w.mu.Unlock()
	return w.saveState()
}

// captureOptions leave IPv6 out where the container's specification switches it off, as runsc does inside.
func (w *Workload) captureOptions() (list []network.CaptureOption) {
	if l := w.spec.Linux; l != nil && l.Sysctl["net.ipv6.conf.all.disable_ipv6"] == "1" {
		list = append(list, network.WithoutIPv6())
	}
	return list
}

// leaveLink moves a created sandbox into the pod's own namespace, where an inner link would do harm: rules of others
// there expect its traffic, or the link can't carry it.
func (w *Workload) leaveLink(ctx context.Context, why *shimv1.Reason) error {
	if err := w.freeSandbox(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	w.fixedReason = why
	w.mu.Unlock()
	w.setNetwork("")
	if err := w.writeSpec(); err != nil {
		return err
	}
	return errors.Join(w.boot(ctx), network.RemoveNamespace(w.innerPath()))
}

// findEarlier looks for what an earlier shim of this container left: a snapshot to restore at Start, or a loss to tell.
// One that can't be read is adopted, too: Start then follows the policy.
func (w *Workload) findEarlier(ctx context.Context, _ CreateRequest, _ *undo.Stack) error {
	head, err := w.local.Head()
	if err == nil {
		w.epoch = head.Epoch
	}
	switch {
	case errors.Is(err, snapshot.ErrNoHead):
		return nil
	case err == nil && head.State == snapshot.Asleep:
		w.foreseeRunsc(ctx)
	}
	switch {
	case w.identity != "" && err == nil: // what of it is restored is known with the right to run
		if head.State == snapshot.Asleep {
			w.adoptUnseen()
		}
		return nil
	case errors.Is(err, snapshot.ErrCorrupt):
		w.opts.Log.Error("the head of an earlier shim's snapshots is damaged", "error", err)
		w.state = lifecycle.Asleep
		return nil
	case err != nil:
		return err
	case head.State == snapshot.Asleep:
		return w.adoptSnapshot(ctx)
	case head.State == snapshot.Awake:
		w.lose("an earlier shim of this container ended while it was awake: that state is lost")
	}
	return nil
}

// foreseeRunsc has the first sandbox be made by the runsc of what sleeps here, so that no other has to be freed. Whatever is wrong with it, the
// wake says.
func (w *Workload) foreseeRunsc(ctx context.Context) {
	s, err := w.local.Current()
	if err == nil {
		err = w.takeRunsc(ctx, s.Manifest())
	}
	if err != nil {
		w.opts.Log.Debug("the runsc of what sleeps here", "error", err)
	}
}

// lose tells of state that won't be restored, in the log and in Status.
func (w *Workload) lose(why string) {
	w.opts.Log.Warn("cold start", "reason", why)
	w.last.wake = &shimv1.Transition{
		Id: newID(), Kind: "wake", Reason: byStart, Outcome: "cold-started", Detail: why, StartedUnixMs: w.opts.Now().UnixMilli(),
	}
}

func (w *Workload) adoptSnapshot(ctx context.Context) error {
	s, err := w.local.Current()
	if err != nil {
		w.opts.Log.Error("the snapshot of an earlier shim can't be used", "error", err)
		w.state = lifecycle.Asleep
		return nil
	}
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return err
	}
	why := ""
	switch m := s.Manifest(); {
	case digest != rootDigest(m):
		why = fmt.Sprintf("the container's specification changed: %v", w.changedFields(m))
	case w.config.Restore == config.RestoreNever:
		why = "restore is never"
	default:
		why = w.imageChanged(ctx, m)
	}
	if why != "" {
		w.lose(why)
		return w.local.Quarantine(s, why)
	}
	w.adopt(s)
	return nil
}

// adoptUnseen is adoptSnapshot of a workload with an identity: whether it may be restored, the wake finds out.
func (w *Workload) adoptUnseen() {
	if s, err := w.local.Current(); err == nil {
		w.adopt(s)
	}
	w.state = lifecycle.Asleep
}

func (w *Workload) adopt(s *snapshot.Snapshot) {
	w.state, w.saved = lifecycle.Asleep, saved{sequence: s.Manifest().Sequence, bytes: s.Size(), lineage: s.Manifest().Lineage}
	w.ports, w.only4 = slices.Clone(s.Manifest().Ports), slices.Clone(s.Manifest().Only4)
}

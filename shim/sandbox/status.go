package sandbox

import (
	"context"
	"slices"
	"strings"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// Status describes the workload, at once and in every state.
func (w *Workload) Status() *shimv1.StatusResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status()
	s.MemoryBytes = w.group.Memory()
	return s
}

// status is Status without what costs a system call. The caller holds w.mu.
func (w *Workload) status() *shimv1.StatusResponse {
	s := &shimv1.StatusResponse{
		Namespace: w.opts.Namespace, Id: w.opts.ID, State: w.state.String(), HolderPid: uint32(w.holder.Pid),
		SandboxPid: uint32(w.sandboxPid), Sequence: w.saved.sequence, ImageBytes: w.saved.bytes,
		StateSinceUnixMs: w.since.UnixMilli(), CreatedUnixMs: w.created.UnixMilli(), Wakes: w.wakes, Hibernations: w.sleeps,
		LastHibernate: w.last.hibernate, LastWake: w.last.wake, Gate: w.gate, Blockers: w.blockers(false),
		Mended: slices.Clone(w.mends), Waits: w.waits,
	}
	if w.identity != "" {
		s.Identity, s.Epoch = &w.identity, w.epoch
		s.Unconfirmed = w.right != nil && w.right.unconfirmed
	}
	if w.unlinked {
		s.Blockers = append(s.Blockers, unlinkedReason())
	}
	s.RunscVersion, s.RunscSha256 = w.madeBy.Version, w.madeBy.SHA256
	for _, p := range w.ports {
		s.Ports = append(s.Ports, uint32(p))
	}
	if w.attachment != nil {
		for _, a := range w.attachment.Addresses {
			s.Addresses = append(s.Addresses, a.String())
		}
	}
	if w.link != nil {
		s.SlowPath = w.link.FastPath()
	}
	for _, c := range w.containers {
		s.Containers = append(s.Containers, &shimv1.Container{Id: c.ID, State: c.state.String(), Execs: c.liveExecs()})
	}
	if w.image != "" {
		s.Image = &w.image
	}
	s.Limits = &shimv1.Limits{HoldMs: w.config.HoldTimeout.Milliseconds(), Connections: uint32(w.config.MaxConnections)}
	for _, k := range w.config.ShimSettings() {
		s.Settings = append(s.Settings, &shimv1.Setting{Key: k.Key, Value: k.Value, Source: k.Source})
	}
	return s
}

// Activity is what idleness is judged by. It never wakes.
func (w *Workload) Activity(ctx context.Context) (*shimv1.ActivityResponse, error) {
	traffic, err := w.traffic(ctx)
	if err != nil {
		return nil, err
	}
	cpu, memory := w.group.CPU(), w.group.Memory()
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &shimv1.ActivityResponse{
		State: w.state.String(), Packets: traffic.Packets, Bytes: traffic.Bytes, CpuUsec: uint64(cpu.Microseconds()), MemoryBytes: memory,
		Execs: w.busyExecs(), Leases: w.liveLeases(), Blockers: w.blockers(false), Mode: string(w.config.Mode),
		IdleTimeoutMs: w.config.IdleTimeout.Milliseconds(), MinAwakeMs: w.config.MinAwake.Milliseconds(),
		StateSinceUnixMs: w.since.UnixMilli(), LastWakeReason: w.last.wake.GetReason(), LastUse: w.lastUse,
	}
	return a, nil
}

// traffic is what the gate has counted; nothing after the workload has ended.
func (w *Workload) traffic(ctx context.Context) (network.Counters, error) {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.link == nil || w.removed {
		return network.Counters{}, nil
	}
	return w.link.Counters(ctx)
}

// RegistrationSocket is where the node's daemon takes registrations.
func (w *Workload) RegistrationSocket() string { return w.config.RegistrationSocket() }

// maxLease bounds a lease: one that nobody renews ends.
const maxLease = 24 * time.Hour

// Lease keeps the workload awake for ttl, at most a day; a ttl of 0 ends the lease of that name. It doesn't wake.
func (w *Workload) Lease(name string, ttl time.Duration) []*shimv1.LeaseInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ttl <= 0 {
		delete(w.leases, name)
	} else {
		w.leases[name] = w.opts.Now().Add(min(ttl, maxLease))
	}
	w.announce(nil)
	return w.liveLeases()
}

// liveLeases are those that have not expired, by name. The caller holds w.mu.
func (w *Workload) liveLeases() []*shimv1.LeaseInfo {
	now := w.opts.Now()
	var live []*shimv1.LeaseInfo
	for name, until := range w.leases {
		if !until.After(now) {
			delete(w.leases, name)
			continue
		}
		live = append(live, &shimv1.LeaseInfo{Name: name, ExpiresUnixMs: until.UnixMilli()})
	}
	slices.SortFunc(live, func(a, b *shimv1.LeaseInfo) int { return strings.Compare(a.GetName(), b.GetName()) })
	return live
}

// Over says whether the workload's containers have ended.
func (w *Workload) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.containers, func(c *Container) bool {
		return c.state != lifecycle.Stopped && c.state != lifecycle.Deleted
	})
}

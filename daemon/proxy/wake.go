package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Wake implements wakeproxy.Waker by the shim, when it is the workload's turn. A workload that is blocked, ended or unknown will
// not wake, and for one that is refused there is no room: that is permanent; everything else is worth another try.
func (s *Session) Wake(ctx context.Context, reason string) error {
	id := wakeproxy.WakeID(ctx)
	shim, err := s.awaitShim(ctx)
	if err != nil {
		return err
	}
	if shim.state() != "awake" {
		s.log.Info("hold", "wake_id", id, "reason", reason, "connections", s.proxy.Load().Stats().Held)
	}
	release, err := s.admit(ctx, shim)
	if err != nil {
		return fmt.Errorf("wake %s: %w", s.key, err)
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, s.opts.WakeTimeout)
	defer cancel()
	silent := time.AfterFunc(s.opts.SilentAfter, func() { s.tellSilence(shim, id) })
	defer silent.Stop()
	resp, err := shim.Wake(ctx, &shimv1.WakeRequest{Reason: reason, WakeId: id})
	if err == nil && resp.GetTransition().GetOutcome() == "blocked" {
		err = fmt.Errorf("%w: %s", wakeproxy.ErrPermanent, resp.GetTransition().GetDetail())
	} else if errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", wakeproxy.ErrPermanent, err)
	}
	if err != nil {
		return fmt.Errorf("wake %s: %w", s.key, err)
	}
	return nil
}

// margin is what a sandbox takes beyond the memory that its snapshot has.
const margin = 48 << 20

// Need is how much memory a sleeping workload is expected to take when it is awake.
func Need(status *shimv1.StatusResponse) uint64 { return status.GetImageBytes() + margin }

// admit waits for the turn of a workload that sleeps, or of which nothing is known. In all other states a wake costs nothing:
// it is under way, there is none, or a hibernation is undone. (One that can't be undone any more is followed by a wake that is
// counted, and not refused: its memory was there a moment ago.)
func (s *Session) admit(ctx context.Context, shim shim) (release func(), err error) {
	if s.opts.Admission != nil {
		shim.known(ctx)
	}
	if state := shim.state(); s.opts.Admission == nil || state != "asleep" && state != "" {
		return func() {}, nil
	}
	release, err = s.opts.Admission.Admit(ctx, s.key, Need(shim.workload.Status()))
	var later wakeproxy.Later
	if errors.As(err, &later) {
		err = fmt.Errorf("%w: %w", wakeproxy.ErrPermanent, err)
	}
	return release, err
}

// knownWithin is how long a shim may take to tell its status when it has just registered.
const knownWithin = time.Second

// known waits until the shim has told its status, without which its need is not known; not for one that hangs.
func (s shim) known(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, knownWithin)
	defer cancel()
	for changed := s.workload.Changed(); s.workload.Status() == nil; changed = s.workload.Changed() {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// tellSilence is called when a shim has not answered for a while. Its clients are held on, and it is asked again.
func (s *Session) tellSilence(shim shim, id string) {
	if state := shim.state(); state != "waking" {
		s.opts.Meter.ShimSilent()
		s.log.Warn("the shim gives no sign of the wake: connections are held on", "wake_id", id, "state", state,
			"for", s.opts.SilentAfter.String(), "at_most", s.limits().HoldFor.String(), "connections", s.proxy.Load().Stats().Held)
	}
}

// limits are the workload's own where it has told them, else the node's.
func (s *Session) limits() wakeproxy.Limits {
	s.mu.Lock()
	w := s.shim.workload
	s.mu.Unlock()
	l := s.opts.Limits
	if w == nil { // an orphan
		return l
	}
	own := w.Status().GetLimits()
	if n := int(own.GetConnections()); n > 0 {
		l.Connections = n
	}
	if hold := time.Duration(own.GetHoldMs()) * time.Millisecond; hold > 0 {
		l.HoldFor, l.DialTimeout = hold, hold
	}
	return l
}

// reasonOf classes why a client was refused.
func reasonOf(err error) string {
	var refusal *admission.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal.Reason
	case errors.Is(err, wakeproxy.ErrHeldTooLong):
		return "hold-timeout"
	case errors.Is(err, wakeproxy.ErrPermanent):
		return "blocked"
	}
	return "failed"
}

// Dial implements wakeproxy.Dialer in the pod's namespace.
func (s *Session) Dial(ctx context.Context, client netip.AddrPort, port uint16) (net.Conn, error) {
	s.mu.Lock()
	pod, target := s.pod, s.target
	s.mu.Unlock()
	conn, err := s.opts.Dial(ctx, pod, client, netip.AddrPortFrom(target, port))
	if errors.Is(err, syscall.ECONNREFUSED) && s.starting() {
		err = fmt.Errorf("it has only just been started: %v", err) // not refused: wakeproxy goes on trying
	}
	return conn, err
}

// observer passes on to the meter and the log what wakeproxy tells.
type observer struct{ *Session }

// Held implements wakeproxy.Observer.
func (o observer) Held(uint16) { o.opts.Meter.Held(o.key.Namespace) }

// Woke implements wakeproxy.Observer. A wake that succeeded is told by the shim's event.
func (o observer) Woke(w wakeproxy.Woke) {
	if w.Err == nil {
		o.log.Debug("gate is open", "wake_id", w.ID, "ms", w.Took.Milliseconds(), "waiters", w.Waiters)
		return
	}
	o.opts.Meter.WakeCallFailed()
	o.log.Warn("wake failed", "wake_id", w.ID, "reason", w.Reason, "ms", w.Took.Milliseconds(), "error", w.Err)
}

// Accepted implements wakeproxy.Observer.
func (o observer) Accepted(uint16, netip.AddrPort) { o.opts.Meter.Accepted() }

// Limited implements wakeproxy.Observer.
func (o observer) Limited(port uint16) {
	o.opts.Meter.Limited()
	o.log.Warn("connections wait because of a limit", "port", port)
}

// Drained implements wakeproxy.Observer.
func (o observer) Drained(d wakeproxy.Drained) {
	if d.Refused != "" {
		o.opts.Meter.ClientRefused(d.Refused, reasonOf(d.Err))
	}
	o.opts.Meter.Drained(d.In, d.Out, d.Dial, d.Err)
	o.log.Debug("connection ended", "port", d.Port, "client", d.Client.String(), "in", d.In, "out", d.Out,
		"ms", d.Took.Milliseconds(), "error", d.Err)
}

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Wake implements wakeproxy.Waker by the shim. A workload that is blocked, ended or unknown will not wake: that is
// permanent; everything else is worth another try.
func (s *Session) Wake(ctx context.Context, reason string) error {
	id := wakeproxy.WakeID(ctx)
	shim, err := s.awaitShim(ctx)
	if err != nil {
		return err
	}
	if shim.state() != "awake" {
		s.log.Info("hold", "wake_id", id, "reason", reason, "connections", s.proxy.Load().Stats().Held)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.WakeTimeout)
	defer cancel()
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
	o.opts.Meter.Drained(d.In, d.Out, d.Dial, d.Err)
	o.log.Debug("connection ended", "port", d.Port, "client", d.Client.String(), "in", d.In, "out", d.Out,
		"ms", d.Took.Milliseconds(), "error", d.Err)
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// offerTimeout bounds a daemon's answer: without one the gate parks.
const offerTimeout = time.Second

// openGate gives the sandbox its packets, first of all those that the kernel kept.
func (w *Workload) openGate(ctx context.Context) error {
	if w.link == nil {
		return nil
	}
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.removed {
		return nil
	}
	return w.openHeld(ctx)
}

// openHeld is openGate of a link that is there. The caller holds gateMu.
func (w *Workload) openHeld(ctx context.Context) error {
	w.keeping = true // as long as it is not known better
	if err := w.setGate(ctx, network.Gate{Position: network.GateOpen}); err != nil {
		return err
	}
	if err := w.link.Connect(ctx); err != nil {
		return err
	}
	w.releaseKeepAlives(ctx)
	return nil
}

// reopen does for a workload that is awake what could not be done when it came to be so: to open the gate, and to leave
// keep-alives to the sandbox. It is false while the gate is shut. The caller holds gateMu.
func (w *Workload) reopen(ctx context.Context) (rungs []network.Rung, open bool) {
	w.mu.Lock()
	open = w.gate == network.GateOpen.String()
	w.mu.Unlock()
	if open && w.keeping {
		w.releaseKeepAlives(ctx)
	}
	if open {
		return nil, true
	}
	r := network.Rung{Name: "gate", Detail: "it was not open"}
	if err := w.openHeld(ctx); err != nil {
		r.Detail = err.Error()
		return []network.Rung{r}, false
	}
	r.OK, r.Repaired = true, true
	return []network.Rung{r}, true
}

// releaseKeepAlives leaves the peers to the sandbox again. It runs, and peers may have heard of it: rules that can't be taken
// away are no reason to give it up, for they take nothing but questions whether a connection is there, and those are answered.
// The ladder tries again. The caller holds gateMu.
func (w *Workload) releaseKeepAlives(ctx context.Context) {
	err := w.link.ReleaseKeepAlives(ctx)
	if w.keeping = err != nil; w.keeping {
		w.opts.Log.Warn("keep-alives are still answered for the sandbox", "error", err)
	}
}

// quicken lets the sandbox's packets take the fast path, a moment after the gate has opened: no traffic waits for it. After
// a wake it is the ladder that does it.
func (w *Workload) quicken() {
	select {
	case <-time.After(ladderAfter):
	case <-w.root().ended:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), ladderTimeout)
	defer cancel()
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.link == nil || w.removed {
		return
	}
	if err := w.link.Quicken(ctx); err != nil {
		w.opts.Log.Warn("fast path", "error", err)
	}
}

// closeGate cuts the sandbox off. New connections to ports are held by the daemon, or parked in the kernel when there
// is none.
func (w *Workload) closeGate(ctx context.Context, ports []uint16) error {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	position := network.GateHeld
	if err := w.offer(ctx, ports); err != nil {
		w.opts.Log.Debug("the gate parks", "reason", err)
		position = network.GateParked
	}
	return w.setGate(ctx, network.Gate{Position: position, Ports: ports})
}

func (w *Workload) setGate(ctx context.Context, g network.Gate) error {
	w.mu.Lock()
	g.Only4 = w.only4
	w.mu.Unlock()
	if err := w.link.SetGate(ctx, g); err != nil {
		return fmt.Errorf("gate %v: %w", g.Position, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut.flip(w.opts.Now(), w.gate, g.Position)
	w.gate = g.Position.String()
	return nil
}

// disconnect has the kernel keep what comes for the sandbox.
func (w *Workload) disconnect(ctx context.Context) error {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	return w.link.Disconnect(ctx)
}

// offer opens listeners on ports and hands them to the daemon. The caller holds gateMu.
func (w *Workload) offer(ctx context.Context, ports []uint16) error {
	if err := w.listen(ctx, ports); err != nil {
		return err
	}
	if !w.opts.Daemon.Connected() {
		return errors.New("no daemon")
	}
	files := make([]*os.File, 0, len(ports))
	for _, p := range ports {
		files = append(files, w.listeners[p])
	}
	o := w.bareOffer()
	o.Target, o.Ports, o.Listeners = w.address(), ports, files
	return w.propose(ctx, o)
}

// propose makes an offer, and takes what the daemon gives back. The caller holds gateMu.
func (w *Workload) propose(ctx context.Context, o Offer) error {
	ctx, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	kept, err := w.opts.Daemon.Offer(ctx, o)
	w.keepListeners(kept)
	return err
}

// bareOffer is the offer of a workload that can't be reached.
func (w *Workload) bareOffer() Offer {
	return Offer{Namespace: w.opts.Namespace, ID: w.opts.ID, Pod: w.podNS, PodPath: w.holder.given}
}

// keepListeners takes over what an earlier shim of the container listened on, so that who waits there is served. A container
// that lost its state is taken to listen on the same ports until its own are learnt. The caller holds gateMu.
func (w *Workload) keepListeners(kept map[uint16]*os.File) {
	var ports []uint16
	for port, f := range kept {
		if w.removed || w.listeners[port] != nil {
			_ = f.Close()
			continue
		}
		w.listeners[port] = f
		ports = append(ports, port)
	}
	slices.Sort(ports)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ports) == 0 {
		w.ports = ports
	}
}

// listen makes the listeners be exactly those of ports. One that stays keeps its backlog. The caller holds gateMu.
func (w *Workload) listen(ctx context.Context, ports []uint16) error {
	for port, f := range w.listeners {
		if !slices.Contains(ports, port) {
			_ = f.Close()
			delete(w.listeners, port)
		}
	}
	for _, port := range ports {
		if w.listeners[port] != nil {
			continue
		}
		f, err := w.link.Listen(ctx, port, w.backlog())
		if err != nil {
			return fmt.Errorf("hold port %d: %w", port, err)
		}
		w.listeners[port] = f
	}
	return nil
}

// The bounds of what one connection may send ahead.
const (
	leastBuffer = 4 << 10
	mostBuffer  = 64 << 10
)

// backlog is how much may wait at one listener.
func (w *Workload) backlog() network.Backlog {
	connections := w.config.MaxBacklog
	share := w.config.MaxHeldBytes / uint64(max(connections, 1))
	return network.Backlog{Connections: connections, Buffer: int(min(max(share, leastBuffer), mostBuffer))}
}

// address is where the workload is dialed, by IPv4 if it has that; "" without a network.
func (w *Workload) address() string {
	if w.link == nil {
		return ""
	}
	return w.link.Address().String()
}

// offerAgain makes the workload known to the daemon, in whatever state it is.
func (w *Workload) offerAgain(ctx context.Context) {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if len(w.listeners) == 0 { // before any are made: a port may be taken by what the daemon has kept
		if err := w.propose(ctx, w.bareOffer()); err != nil {
			w.opts.Log.Debug("registration", "error", err)
		}
	}
	if w.Over() { // who waited while no daemon was there to be told
		w.opts.Daemon.Ended()
	}
	if w.link == nil || w.removed {
		return
	}
	w.mu.Lock()
	ports, gate := w.ports, w.gate
	w.mu.Unlock()
	if err := w.offer(ctx, ports); err != nil {
		w.opts.Log.Debug("registration", "error", err)
		return
	}
	if gate == network.GateParked.String() {
		if err := w.setGate(ctx, network.Gate{Position: network.GateHeld, Ports: ports}); err != nil {
			w.opts.Log.Warn("gate", "error", err)
		}
	}
}

// DaemonUp is called when a daemon has connected: it gets the listeners, and a parked gate holds from now on.
func (w *Workload) DaemonUp() {
	w.stopDraining()
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	w.offerAgain(ctx)
}

// DaemonDown is called when the daemon has gone. New connections are parked from now on; the handshakes that it held
// wait for another one, and are served by the shim itself when none comes.
func (w *Workload) DaemonDown() {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	w.gateMu.Lock()
	w.mu.Lock()
	ports, gate := w.ports, w.gate
	w.mu.Unlock()
	var err error
	if gate == network.GateHeld.String() && !w.removed {
		err = w.setGate(ctx, network.Gate{Position: network.GateParked, Ports: ports})
	}
	w.gateMu.Unlock()
	if err != nil {
		w.opts.Log.Warn("gate", "error", err)
	}
	w.startDraining()
}

// watchPackets wakes the workload, or undoes its hibernation, when the kernel keeps a packet for it.
func (w *Workload) watchPackets() {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	if w.stopWatch != nil {
		w.mu.Unlock()
		cancel()
		return
	}
	w.stopWatch = cancel
	w.mu.Unlock()
	go func() {
		err := w.link.Misses(ctx, func(m network.Miss) { go w.packet(ctx) })
		if err != nil && ctx.Err() == nil {
			w.opts.Log.Error("the watch for packets ended", "error", err)
		}
	}()
}

// unwatchPackets ends the watch: an awake sandbox gets its packets itself.
func (w *Workload) unwatchPackets() {
	w.mu.Lock()
	stop := w.stopWatch
	w.stopWatch = nil
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// packet answers a packet for a sandbox that isn't there.
func (w *Workload) packet(ctx context.Context) {
	if _, err := w.Wake(ctx, byPacket, ""); err != nil && ctx.Err() == nil && !errors.Is(err, ErrPaused) && !errors.Is(err, ErrCordoned) {
		w.opts.Log.Warn("wake by a packet", "error", err)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/visitors"
)

const (
	visitEach = 3 * time.Millisecond // the pause between two clients
	// killWithin is the time after the first client in which the daemon is killed: before, during or after the wake. Each second
	// time it is that after the wake, which may take longer.
	killWithin = 800 * time.Millisecond
	visitAfter = 100 * time.Millisecond // how long clients come after the next daemon has been started
)

// measureKills kills the daemon while clients come to a sleeper, one after the other, and starts another. Those whom it had
// accepted, whose connections it was draining, are lost with it, and told apart; of all others none may be refused or reset.
func measureKills(ctx context.Context, b *bench) (err error) {
	o, err := newServer(ctx, b, "kills")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var total fate
	clients, drained, kills := 0, 0, 0
	for i := range b.plan.kills {
		if _, _, err := o.sleep(ctx); err != nil {
			return fmt.Errorf("sleep %d: %w", i, err)
		}
		one, err := b.killOnce(ctx, o, i%2 == 1)
		if err != nil {
			return fmt.Errorf("kill %d: %w", i, err)
		}
		total.add(one.fate)
		clients, drained, kills = clients+one.clients, drained+one.drained, kills+1
	}
	b.add("daemon_kills", float64(kills), "kills", fmt.Sprint(">= ", b.plan.kills), clients)
	b.add("daemon_kill_refused", float64(total.Refused), "clients", "<= 0", clients)
	b.add("daemon_kill_reset", float64(total.Reset+total.Lost), "clients", "<= 0", clients)
	b.add("daemon_kill_drained", float64(drained), "clients", "", clients)
	return nil
}

// killed is what became of the clients of one kill, but for those that the daemon was draining.
type killed struct {
	fate
	clients, drained int
}

// killOnce has clients come until another daemon has run for a while. The one before is killed at any moment, or after the wake.
func (b *bench) killOnce(ctx context.Context, o *ours, woken bool) (k killed, err error) {
	echo := net.JoinHostPort(o.pod.IP, fmt.Sprint(echoPort))
	v := visitors.Begin(ctx, func(ctx context.Context) (net.Conn, error) { return o.world.Dial(ctx, "tcp", echo) }, visitEach)
	if woken {
		_, err = o.world.WaitState(ctx, o.id, "awake")
	}
	if err == nil {
		err = pause(ctx, time.Duration(rand.Int64N(int64(killWithin))))
	}
	var owned map[uint16]bool
	if err == nil {
		owned, err = b.killDaemon(ctx, o)
	}
	if err == nil {
		err = errors.Join(b.world.Daemon.Start(ctx), pause(ctx, visitAfter))
	}
	for _, g := range v.End() {
		k.clients++
		if g.Err != nil && owned[g.Port] {
			k.drained++
			continue
		}
		k.of(g.Err)
		if g.Err != nil {
			fmt.Fprintf(os.Stderr, "bench: from port %d: %v\n", g.Port, g.Err)
		}
	}
	return k, err
}

// killDaemon returns the clients' ports whose connections had been accepted.
func (b *bench) killDaemon(ctx context.Context, o *ours) (map[uint16]bool, error) {
	s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	if err := syscall.Kill(b.world.Daemon.Pid(), syscall.SIGSTOP); err != nil {
		return nil, err
	}
	owned, err := visitors.Accepted(int(s.GetHolderPid()), echoPort)
	return owned, errors.Join(err, b.world.Daemon.Kill())
}

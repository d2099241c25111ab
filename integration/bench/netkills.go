package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const (
	visitEach = 3 * time.Millisecond // the pause between two clients
	// killWithin is the time after the first client in which the daemon is killed: before, during or after the wake.
	killWithin = 250 * time.Millisecond
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
		one, err := b.killOnce(ctx, o)
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

// killOnce has clients come until another daemon has run for a while.
func (b *bench) killOnce(ctx context.Context, o *ours) (k killed, err error) {
	v := &visitors{o: o, stop: make(chan struct{})}
	v.all.Go(func() { v.come(ctx) })
	err = pause(ctx, time.Duration(rand.Int64N(int64(killWithin))))
	var owned map[uint16]bool
	if err == nil {
		owned, err = b.killDaemon(ctx, o)
	}
	if err == nil {
		err = errors.Join(b.world.Daemon.Start(ctx), pause(ctx, visitAfter))
	}
	close(v.stop)
	v.all.Wait()
	for _, g := range v.guests {
		k.clients++
		if g.err != nil && owned[g.port] {
			k.drained++
			continue
		}
		k.of(g.err)
		if g.err != nil {
			fmt.Fprintf(os.Stderr, "bench: a client from port %d: %v\n", g.port, g.err)
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
	owned, err := accepted(int(s.GetHolderPid()), echoPort)
	return owned, errors.Join(err, b.world.Daemon.Kill())
}

// accepted are the peers' ports of the connections to a port that somebody in a process's network namespace has accepted: what
// waits in a backlog belongs to no file yet.
func accepted(pid int, port uint16) (map[uint16]bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return nil, err
	}
	ports := map[uint16]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[9] == "0" || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		_, peer, _ := strings.Cut(f[2], ":")
		n, err := strconv.ParseUint(peer, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		ports[uint16(n)] = true
	}
	return ports, nil
}

// guest is one client, when it has ended.
type guest struct {
	port uint16 // its own
	err  error
}

// visitors come one after the other.
type visitors struct {
	o    *ours
	stop chan struct{}
	all  sync.WaitGroup

	mu     sync.Mutex
	guests []guest // guarded by mu
}

// come has clients come until it is told to stop; each waits for its answer.
func (v *visitors) come(ctx context.Context) {
	for i := 0; ; i++ {
		v.all.Go(func() { v.visit(ctx, i) })
		select {
		case <-v.stop:
			return
		case <-time.After(visitEach):
		}
	}
}

func (v *visitors) visit(ctx context.Context, i int) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var g guest
	c, err := v.o.world.Dial(ctx, "tcp", net.JoinHostPort(v.o.pod.IP, fmt.Sprint(echoPort)))
	if g.err = err; err == nil {
		if own, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
			g.port = own.Port()
		}
		g.err = ask(c, fmt.Sprintf("visitor %d\n", i))
		_ = c.Close()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.guests = append(v.guests, g)
}

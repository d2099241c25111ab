package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// sleepsOfEstablished is through how many sleeps connections are to live.
const sleepsOfEstablished = 10

// measureKeepAlive has a server sleep whose clients ask each second whether their connections are still there.
func measureKeepAlive(ctx context.Context, b *bench) (err error) {
	o, conns, err := newCompany(ctx, b, "alive", net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.close(), o.close()) }()
	if _, _, err := o.sleep(ctx); err != nil {
		return err
	}
	before, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return err
	}
	if err := pause(ctx, b.plan.silence); err != nil {
		return err
	}
	after, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return err
	}
	kept := conns.kept("after keep-alives")
	b.add("keepalive_wakes", float64(after.GetWakes()-before.GetWakes()), "wakes", "<= 0", len(conns))
	b.add("keepalive_lost", float64(len(conns)-kept), "connections", "<= 0", len(conns))
	b.add("keepalive_silence_s", b.plan.silence.Seconds(), "s", "", 1)
	return nil
}

// measureEstablished has a server sleep again and again under connections on which nothing is said.
func measureEstablished(ctx context.Context, b *bench) (err error) {
	o, conns, err := newCompany(ctx, b, "company", net.KeepAliveConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.close(), o.close()) }()
	for i := range sleepsOfEstablished {
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
		line := fmt.Sprintf("sleep %d\n", i)
		if err := ask(conns[i*(len(conns)-1)/sleepsOfEstablished], line); err != nil {
			return fmt.Errorf("wake %d: %w", i, err)
		}
		if _, err := o.woken(ctx, "packet"); err != nil {
			return err
		}
	}
	b.add("established_kept", float64(conns.kept("after all")), "connections", fmt.Sprint(">= ", len(conns)), len(conns))
	return nil
}

// company is open connections to the line echo.
type company []net.Conn

// newCompany runs a server with as many connections as are planned, each of which has been answered.
func newCompany(ctx context.Context, b *bench, id string, probes net.KeepAliveConfig) (*ours, company, error) {
	o, err := newServer(ctx, b, id)
	if err != nil {
		return nil, nil, err
	}
	conns := make(company, b.plan.idle)
	for i := range conns {
		c, err := o.world.Dial(ctx, "tcp", net.JoinHostPort(o.pod.IP, fmt.Sprint(echoPort)))
		if err == nil {
			conns[i] = c
			err = errors.Join(c.(*net.TCPConn).SetKeepAliveConfig(probes), ask(c, "hello\n"))
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("connection %d: %w", i, err), conns.close(), o.close())
		}
	}
	return o, conns, nil
}

func (all company) close() error {
	for _, c := range all {
		if c != nil {
			_ = c.Close()
		}
	}
	return nil
}

// kept asks on each connection, and counts those that are answered.
func (all company) kept(word string) int {
	answered := make([]bool, len(all))
	var g errgroup.Group
	g.SetLimit(64)
	for i, c := range all {
		g.Go(func() error {
			answered[i] = ask(c, fmt.Sprintf("%s, connection %d\n", word, i)) == nil
			return nil
		})
	}
	_ = g.Wait()
	n := 0
	for _, ok := range answered {
		if ok {
			n++
		}
	}
	return n
}

// ask says a line and waits for its echo.
func ask(c net.Conn, line string) error {
	if err := c.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(line)); err != nil {
		return err
	}
	return hear(c, line)
}

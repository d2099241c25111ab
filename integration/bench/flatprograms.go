package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A served program is an image whose first answer is measured.
type served struct {
	name   string // of its image
	port   uint16
	ask    string
	answer string   // what its answers begin with
	args   []string // instead of what its image runs
	fill   func(context.Context, *ours) error
}

var servedPrograms = []served{
	{name: "python3", port: 8000, ask: "GET / HTTP/1.0\r\n\r\n", answer: "HTTP/1.0 200"},
	{name: "node", port: 8000, ask: "GET / HTTP/1.0\r\n\r\n", answer: "HTTP/1.1 200"},
	{name: "nginx", port: 80, ask: "GET / HTTP/1.0\r\n\r\n", answer: "HTTP/1.1 200"},
	{name: "redis", port: 6379, ask: "GET key:77\r\n", answer: "$1024", fill: fillRedis,
		args: []string{"/usr/bin/redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/var/lib/redis", "--save", "", "--enable-debug-command", "yes"}},
}

// redisKeys are 1 KiB each.
const redisKeys = 1 << 20

// fillRedis has redis make the keys itself.
func fillRedis(ctx context.Context, o *ours) error {
	conn, err := o.world.Dial(ctx, "tcp", o.address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "DEBUG POPULATE %d key 1024\r\n", redisKeys); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	if err == nil && !strings.HasPrefix(string(answer[:n]), "+OK") {
		err = fmt.Errorf("redis answered %.80q", answer[:n])
	}
	return err
}

// newProgram runs one, whose wakes are of one way, and waits until it answers.
func newProgram(ctx context.Context, b *bench, p served, way string) (*ours, error) {
	o, err := newOursOf(ctx, b, p.name+"-"+way, func(o *ours) (harness.Container, error) {
		o.image = p.name
		o.address = netip.AddrPortFrom(o.address.Addr(), p.port)
		o.client.request, o.client.answer = []byte(p.ask), []byte(p.answer)
		c := harness.Container{ID: o.id, Image: p.name, Args: p.args, NetNS: o.pod.Path, Detach: true}
		if p.fill != nil {
			o.client.answer = []byte("$") // of a key that isn't there yet
		}
		return c, b.choose(&c, way)
	})
	if err != nil || p.fill == nil {
		return o, err
	}
	o.client.answer = []byte(p.answer)
	if err := p.fill(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("fill %s: %w", p.name, err), o.close())
	}
	return o, nil
}

// measureFlatPrograms tells the first byte of programs that are no test servers.
func measureFlatPrograms(ctx context.Context, b *bench) error {
	for _, p := range servedPrograms {
		if err := measureProgram(ctx, b, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func measureProgram(ctx context.Context, b *bench, p served) (err error) {
	ways := []string{flatLoad, plainLoad}
	var all []*ours
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for _, way := range ways {
		o, err := newProgram(ctx, b, p, way)
		if err != nil {
			return err
		}
		all = append(all, o)
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
	}
	var first, loaded [2]samples
	for i := range b.plan.flatRounds {
		for k := range all {
			k = (k + i) % len(all)
			w, err := all[k].wakeAll(ctx, ways[k])
			if err != nil {
				return err
			}
			first[k].add(w.first)
			loaded[k].add(w.loaded)
		}
	}
	at, n := "/"+p.name, len(first[0])
	b.add("flat_over_plain_p50"+at, first[0].median()/first[1].median(), "ratio", "", n)
	b.add("flat_worst_over_plain"+at, first[0].quantile(1)/first[1].median(), "ratio", "<= 1.1", n)
	b.add("flat_ms_p50"+at, first[0].median(), "ms", "", n)
	b.add("plain_ms_p50"+at, first[1].median(), "ms", "", n)
	b.add("flat_loaded_over_plain"+at, loaded[0].median()/loaded[1].median(), "ratio", "", n)
	return nil
}

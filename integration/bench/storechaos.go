package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/hibernate-runtime/hibernate/integration/chaos"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
)

// measureChaos counts what is lost and what is left over when the daemon, the store's server and the shim die at random moments.
func measureChaos(ctx context.Context, b *bench) (err error) {
	way, err := newDoor(b.world, b.bucket.address)
	if err != nil {
		return err
	}
	defer way.close()
	objects, err := open.URL(strings.Replace(b.bucket.url, b.bucket.address, way.address(), 1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	key, err := durable.KeyFile(b.bucket.key)
	if err != nil {
		return err
	}
	if err := b.world.Import(ctx, image); err != nil {
		return err
	}
	f := &chaos.Field{World: b.world, Server: &mortal{ctx, b}, Store: objects, Keys: durable.Keyring{Current: key}}
	if err := f.Open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lost, orphans := 0, 0
	for n := range b.plan.store.chaos {
		seed := b.plan.store.seed + uint64(n)
		r, err := f.Run(ctx, seed)
		if err != nil {
			return fmt.Errorf("seed %d: %w\n%s", seed, err, r)
		}
		if lost, orphans = lost+len(r.Lost), orphans+len(r.Orphans); r.Failed() {
			fmt.Fprintf(os.Stderr, "bench: seed %d:\n%s\n", seed, r)
		}
	}
	b.add("chaos_runs", float64(b.plan.store.chaos), "runs", "", b.plan.store.chaos)
	b.add("chaos_lost", float64(lost), "snapshots", "<= 0", b.plan.store.chaos)
	b.add("chaos_orphans", float64(orphans), "objects", "<= 0", b.plan.store.chaos)
	return nil
}

// mortal is the bucket's server as chaos has it.
type mortal struct {
	ctx context.Context
	b   *bench
}

func (m *mortal) Kill()        { _ = m.b.bucket.end() }
func (m *mortal) Start() error { return m.b.bucket.start(m.ctx, m.b) }

// A door is an address on this machine's loopback that leads to one of the world's.
type door struct {
	l       net.Listener
	serving sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; nil: closed
}

func newDoor(w *harness.World, to string) (*door, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &door{l: l, conns: make(map[net.Conn]struct{})}
	d.serving.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			d.serving.Go(func() {
				defer near.Close()
				far, err := w.DialNode(context.Background(), "tcp", to)
				if err != nil {
					return
				}
				defer far.Close()
				d.join(near, far)
			})
		}
	})
	return d, nil
}

func (d *door) address() string { return d.l.Addr().String() }

func (d *door) join(near, far net.Conn) {
	d.mu.Lock()
	open := d.conns != nil
	if open {
		d.conns[near], d.conns[far] = struct{}{}, struct{}{}
	}
	d.mu.Unlock()
	if !open {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
		})
	}
	both.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, near)
	delete(d.conns, far)
}

func (d *door) close() {
	_ = d.l.Close()
	d.mu.Lock()
	for c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	d.serving.Wait()
}

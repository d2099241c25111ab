package store

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// relay is where the world's daemon reaches a server on the machine's loopback. It can be held: then what is sent stays on its way.
type relay struct {
	address string // in the world
	target  string
	sent    atomic.Int64 // bytes towards the server

	mu    sync.Mutex
	free  *sync.Cond
	limit int64 // of sent; negative: none
	stand func(net.Conn)
	ended bool
	conns map[net.Conn]struct{}
}

// newRelay listens in the world until the test ends.
func newRelay(t *testing.T, w *harness.World, target string) *relay {
	t.Helper()
	r := &relay{target: target, limit: -1, conns: make(map[net.Conn]struct{})}
	r.free = sync.NewCond(&r.mu)
	var l net.Listener
	err := ns.WithNetNSPath(w.NodeNetNS(), func(ns.NetNS) (err error) { // a socket stays in the namespace of the thread that made it
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		r.ended = true
		for c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.free.Broadcast()
		serving.Wait()
	})
	return r
}

// serve passes one connection on. While the server is down it is closed at once.
func (r *relay) serve(client net.Conn) {
	defer client.Close()
	stand := r.register(client)
	defer r.forget(client)
	if stand != nil {
		stand(client)
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer server.Close()
	r.register(server)
	defer r.forget(server)
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	r.copyUp(server, client)
	_ = server.Close()
	both.Wait()
}

// register has a connection closed when the relay ends, and tells what answers in the server's place, if anything.
func (r *relay) register(c net.Conn) (stand func(net.Conn)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns[c] = struct{}{}; r.ended {
		_ = c.Close()
	}
	return r.stand
}

func (r *relay) forget(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// answer ends all connections, and has those to come answered by stand; nil: by the server.
func (r *relay) answer(stand func(net.Conn)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stand = stand
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *relay) copyUp(server, client net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			r.await(r.sent.Add(int64(n)))
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits until so many bytes may pass.
func (r *relay) await(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.limit >= 0 && n > r.limit && !r.ended {
		r.free.Wait()
	}
}

// holdAfter lets so many bytes more pass.
func (r *relay) holdAfter(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = r.sent.Load() + n
}

// release lets all pass.
func (r *relay) release() {
	r.mu.Lock()
	r.limit = -1
	r.mu.Unlock()
	r.free.Broadcast()
}

// held is true when something is on its way and may not pass.
func (r *relay) held() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit >= 0 && r.sent.Load() > r.limit
}

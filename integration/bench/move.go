package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

var moveSet = set{file: "bench-move.jsonl", load: flatLoad, prepare: startStore, parts: []part{
	{"peer", measurePeerMoves},
	{"move", measureMoves},
	{"dirty", measureDirtyMoves},
	{"cold", measureColdMoves},
	{"four", measureFourMoves},
	{"fork", measureForks},
	{"chaos", measureExecutors},
}}

// A movePlan says how much is measured of workloads that go elsewhere, or are multiplied.
type movePlan struct {
	runs  int // moves of 128 MiB, from node to node, and as many by the store
	dirty int // moves with 1 GiB written
	cold  int // moves whose snapshot is not in memory
	four  int // rounds of four moves at once
	forks int // rounds, each of forkCount children
	chaos int // random runs
}

// twoNodes is two nodes that share the bench's store: the bench's own, and another.
type twoNodes struct {
	nodes [2]*harness.World
	stop  []func() error
}

// Where the nodes answer each other: each address leads to the same node from both.
const peerA, peerB = "127.0.0.1:9487", "127.0.0.1:9488"

// pairs counts those that were made: each second node has a name of its own, since it has a data directory of its own.
var pairs int

// newTwoNodes makes the second node. With peers they ask each other.
func newTwoNodes(ctx context.Context, b *bench, peers bool) (_ *twoNodes, err error) {
	p := &twoNodes{nodes: [2]*harness.World{b.world}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	pairs++
	here := map[string]string{"node-name": `"node-a"`}
	there := map[string]string{
		"mode": `"manual"`, "load": fmt.Sprintf("%q", flatLoad), "node-name": fmt.Sprintf("%q", fmt.Sprint("node-b", pairs)),
		"store": fmt.Sprintf("%q", b.bucket.url), "store-key-file": fmt.Sprintf("%q", b.bucket.key),
	}
	if peers {
		here["peer-address"], there["peer-address"] = fmt.Sprintf("%q", peerA), fmt.Sprintf("%q", peerB)
	}
	if err := b.useStore(ctx, here); err != nil {
		return nil, err
	}
	other, err := harness.Start(ctx, harness.Options{Daemon: true, Namespace: b.world.Namespace, Settings: there})
	if err != nil {
		return nil, err
	}
	p.nodes[1] = other
	p.stop = append(p.stop, other.Close)
	for _, way := range []struct {
		from, to *harness.World
		address  string
	}{{other, b.world, b.bucket.address}, {other, b.world, peerA}, {b.world, other, peerB}} {
		stop, err := relay(ctx, way.from, way.to, way.address)
		if err != nil {
			return nil, err
		}
		p.stop = append(p.stop, stop)
	}
	for _, w := range p.nodes {
		if err := w.Import(ctx, image); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *twoNodes) close() (err error) {
	if other := p.nodes[1]; other != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = other.RemoveAll(ctx)
	}
	for i := len(p.stop) - 1; i >= 0; i-- {
		err = errors.Join(err, p.stop[i]())
	}
	return err
}

// relay has an address of one world's loopback be that of another's.
func relay(ctx context.Context, from, to *harness.World, address string) (stop func() error, err error) {
	var l net.Listener
	err = ns.WithNetNSPath(from.NodeNetNS(), func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer near.Close()
				far, err := to.DialNode(ctx, "tcp", address)
				if err != nil {
					return
				}
				defer far.Close()
				over := context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
				defer over()
				back := make(chan struct{})
				go func() {
					defer close(back)
					_, _ = io.Copy(near, far)
					_ = near.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(far, near)
				_ = far.(*net.TCPConn).CloseWrite()
				<-back
			})
		}
	})
	return func() error { err := l.Close(); cancel(); all.Wait(); return err }, nil
}

// A mover is a workload that goes from one of two nodes to the other and back.
type mover struct {
	*twoNodes
	identity string
	mib      int
	at       int // the node where it is
	round    int
	pod      [2]harness.Pod
	clients  [2]*client
	state    []string // what it must answer wherever it is
	counter  int
}

// movedState are what tells the workload's state: the process, its memory, an open file that has no name any more, a mapping, and a file.
var movedState = []string{"/pid", "/memory/sha256", "/file/sha256?name=open", "/mmap/sha256?name=map", "/sha256?path=/tmp/kept"}

func newMover(ctx context.Context, p *twoNodes, identity string, mib int) (*mover, error) {
	m := &mover{twoNodes: p, identity: identity, mib: mib}
	for i, w := range p.nodes {
		var err error
		if m.clients[i], err = newClient(w.EnterClient); err != nil {
			return nil, err
		}
	}
	if err := m.start(ctx, 0); err != nil {
		return nil, err
	}
	if _, err := m.clients[0].again(ctx, m.address(0)); err != nil {
		return nil, err
	}
	for _, path := range []string{"/file/create?name=open&mib=1", "/mmap/create?name=map&mib=1", "/write?path=/tmp/kept&mib=1"} {
		if _, err := m.get(ctx, "POST", path); err != nil {
			return nil, err
		}
	}
	for _, path := range movedState {
		is, err := m.get(ctx, "GET", path)
		if err != nil {
			return nil, err
		}
		m.state = append(m.state, is)
	}
	return m, m.count(ctx)
}

func (m *mover) id(node int) string { return fmt.Sprintf("%s-%d-%d", m.identity, m.round, node) }

func (m *mover) address(node int) netip.AddrPort {
	ip, _ := netip.ParseAddr(m.pod[node].IP)
	return netip.AddrPortFrom(ip, port)
}

// start runs a container of the workload on a node; it returns when that runs.
func (m *mover) start(ctx context.Context, node int) (err error) {
	w := m.nodes[node]
	if m.pod[node], err = w.NewPod(ctx, m.id(node)); err != nil {
		return err
	}
	return m.run(ctx, node)
}

func (m *mover) run(ctx context.Context, node int) error {
	_, err := m.nodes[node].Run(ctx, harness.Container{
		ID: m.id(node), Image: image, NetNS: m.pod[node].Path, Detach: true, Flags: []string{"--null-io"},
		Annotations: map[string]string{"identity": m.identity, "on-stop": "hibernate"}, Env: []string{fmt.Sprint("TESTSERVER_MIB=", m.mib)},
	})
	return err
}

func (m *mover) get(ctx context.Context, method, path string) (string, error) {
	w := m.nodes[m.at]
	conn, err := w.Dial(ctx, "tcp", m.address(m.at).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.0\r\n\r\n", method, path); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	head, body, ok := strings.Cut(string(text), "\r\n\r\n")
	if err != nil || !ok || !strings.Contains(head, " 200 ") {
		return "", fmt.Errorf("%s %s: %q: %w", method, path, head, err)
	}
	return strings.TrimSpace(body), nil
}

// count has the counter go on.
func (m *mover) count(ctx context.Context) error {
	m.counter++
	is, err := m.get(ctx, "POST", "/counter")
	if err == nil && is != fmt.Sprint(m.counter) {
		err = fmt.Errorf("%s: the counter is %s, want %d", m.identity, is, m.counter)
	}
	return err
}

// whole compares the state with what it was in the beginning.
func (m *mover) whole(ctx context.Context) error {
	for i, path := range movedState {
		is, err := m.get(ctx, "GET", path)
		if err != nil {
			return err
		}
		if is != m.state[i] {
			return fmt.Errorf("%s: %s was %s, and is %s on the other node", m.identity, path, m.state[i], is)
		}
	}
	return m.count(ctx)
}

// A move is one way, from SIGTERM at the source.
type move struct{ answered, exited, restored time.Duration }

// move stops the container where the workload is, starts one on the other node at the same moment, and waits for its first answer.
func (m *mover) move(ctx context.Context) (v move, err error) {
	from, to := m.at, 1-m.at
	m.round++
	w, target := m.nodes[from], m.nodes[to]
	source := m.source(from)
	if m.pod[to], err = target.NewPod(ctx, m.id(to)); err != nil {
		return v, err
	}
	began := time.Now()
	var exited time.Duration
	var wg sync.WaitGroup
	var failed [3]error
	wg.Go(func() {
		if failed[0] = w.Kill(ctx, source, "SIGTERM"); failed[0] == nil {
			failed[0] = w.WaitTask(ctx, source, "STOPPED")
		}
		exited = time.Since(began)
	})
	wg.Go(func() { failed[1] = m.run(ctx, to) })
	var at time.Time
	wg.Go(func() { at, failed[2] = m.clients[to].again(ctx, m.address(to)) })
	wg.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return v, fmt.Errorf("%s: move: %w", m.identity, err)
	}
	v.answered, v.exited = at.Sub(began), exited
	if err := errors.Join(w.Remove(ctx, source), w.RemovePod(ctx, m.pod[from])); err != nil {
		return v, err
	}
	m.at = to
	t, err := m.woken(ctx)
	if err != nil {
		return v, err
	}
	v.restored = time.Duration(t.GetTotalMs() * float64(time.Millisecond))
	return v, m.whole(ctx)
}

// source is the id of the container on a node.
func (m *mover) source(node int) string { return fmt.Sprintf("%s-%d-%d", m.identity, m.round-1, node) }

// woken is the wake by which the workload came where it is, which must have lost nothing.
func (m *mover) woken(ctx context.Context) (*shimv1.Transition, error) {
	shim, hangUp, err := m.nodes[m.at].Shim(ctx, m.id(m.at))
	if err != nil {
		return nil, err
	}
	defer hangUp()
	s, err := shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	t := s.GetLastWake()
	if t.GetOutcome() != "restored" {
		return nil, fmt.Errorf("%s: it was %s: %s", m.identity, t.GetOutcome(), t.GetDetail())
	}
	return t, nil
}

func (m *mover) remove(ctx context.Context) error {
	for _, c := range m.clients {
		c.close()
	}
	w := m.nodes[m.at]
	return errors.Join(w.Remove(ctx, m.id(m.at)), w.RemovePod(ctx, m.pod[m.at]))
}

// measurePeerMoves measures from the signal to the source to the first answer at the target, from node to node.
func measurePeerMoves(ctx context.Context, b *bench) error {
	answered, exited, restored, err := b.moves(ctx, b.plan.move.runs, movesOf{peers: true})
	if err != nil {
		return err
	}
	n := len(answered)
	b.add("move_median_ms/128", answered.median(), "ms", "<= 1200", n)
	b.add("move_p95_ms/128", answered.quantile(0.95), "ms", "<= 2000", n)
	b.add("move_runs", float64(n), "moves", "", n)
	b.add("move_exit_ms_p50/128", exited.median(), "ms", "", n)
	b.add("move_wake_ms_p50/128", restored.median(), "ms", "", n)
	return nil
}

// measureMoves is the same by the store alone.
func measureMoves(ctx context.Context, b *bench) error {
	answered, exited, restored, err := b.moves(ctx, b.plan.move.runs, movesOf{})
	if err != nil {
		return err
	}
	n := len(answered)
	b.add("move_store_median_ms/128", answered.median(), "ms", "", n)
	b.add("move_store_p95_ms/128", answered.quantile(0.95), "ms", "", n)
	b.add("move_store_exit_ms_p50/128", exited.median(), "ms", "", n)
	b.add("move_store_wake_ms_p50/128", restored.median(), "ms", "", n)
	return nil
}

// measureDirtyMoves has 1 GiB in files of the root file system.
func measureDirtyMoves(ctx context.Context, b *bench) error {
	answered, _, _, err := b.moves(ctx, b.plan.move.dirty, movesOf{peers: true, files: 1024})
	if err != nil {
		return err
	}
	b.add("move_dirty_ms/1024", answered.median(), "ms", "", len(answered))
	return nil
}

// measureColdMoves has nothing of the node's files be in memory when the signal comes.
func measureColdMoves(ctx context.Context, b *bench) error {
	answered, _, _, err := b.moves(ctx, b.plan.move.cold, movesOf{peers: true, cold: true})
	if err != nil {
		return err
	}
	b.add("move_cold_ms/128", answered.median(), "ms", "", len(answered))
	return nil
}

// measureFourMoves moves four at once, and takes the last one's answer.
func measureFourMoves(ctx context.Context, b *bench) error {
	answered, _, _, err := b.moves(ctx, b.plan.move.four, movesOf{peers: true, at: 4})
	if err != nil {
		return err
	}
	b.add("move_four_ms/128", answered.median(), "ms", "", len(answered))
	return nil
}

// movesOf says what is moved, and how.
type movesOf struct {
	peers bool // from node to node
	files int  // MiB that were written
	cold  bool // the page cache is dropped before each
	at    int  // workloads at once; 0: one
}

// moves moves workloads to and fro. Of several at once the slowest one counts.
func (b *bench) moves(ctx context.Context, runs int, of movesOf) (answered, exited, restored samples, err error) {
	p, err := newTwoNodes(ctx, b, of.peers)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var all []*mover
	for i := range max(1, of.at) {
		m, err := newMover(ctx, p, fmt.Sprintf("mover%d-%d", pairs, i), tailSize)
		if err != nil {
			return nil, nil, nil, err
		}
		all = append(all, m)
		defer func() { err = errors.Join(err, m.remove(context.WithoutCancel(ctx))) }()
		if of.files > 0 {
			if _, err := m.get(ctx, "POST", fmt.Sprint("/write?path=/written&mib=", of.files)); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	for range runs {
		if of.cold {
			if err := dropCaches(); err != nil {
				return nil, nil, nil, err
			}
		}
		slowest, err := moveAll(ctx, all)
		if err != nil {
			return nil, nil, nil, err
		}
		answered.add(slowest.answered)
		exited.add(slowest.exited)
		restored.add(slowest.restored)
	}
	return answered, exited, restored, nil
}

// moveAll moves all of them at once.
func moveAll(ctx context.Context, all []*mover) (slowest move, err error) {
	var mu sync.Mutex // guards slowest and err
	var moving sync.WaitGroup
	for _, m := range all {
		moving.Go(func() {
			v, merr := m.move(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err = errors.Join(err, merr); v.answered > slowest.answered {
				slowest = v
			}
		})
	}
	moving.Wait()
	return slowest, err
}

// dropCaches has the kernel forget what it has of files.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)
}

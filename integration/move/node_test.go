// Package move tests workloads with an identity on two nodes that share a store: each has a containerd, a daemon, a network and a way
// to the store of its own.
package move

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/integration/wire"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// limit bounds one command, a start that waits for a node's death included.
const limit = 60 * time.Second

// mib is the memory of the servers.
const mib = 16

// takeover is how long nodes are silent before others take over.
const takeover = 6 * time.Second

// node is one of a pair.
type node struct {
	*harness.World
	t    *testing.T
	name string
	wire *wire.Wire // to the store
	peer *wire.Wire // of the other node, to this one's daemon; nil: there is none
}

// pair makes two nodes with one store. settings are theirs besides.
func pair(t *testing.T, settings map[string]string) (a, b *node) {
	t.Helper()
	gw := storetest.Versitygw(t, false)
	bucket := gw.Bucket(t)
	key := filepath.Join(t.TempDir(), "store.key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("k"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	namespace := ""
	start := func(name string) *node {
		all := map[string]string{
			"mode": `"manual"`, "min-awake": `"0s"`, "metrics-address": `"127.0.0.1:9476"`, "node-name": strconv.Quote(name),
			"takeover-after": strconv.Quote(takeover.String()),
		}
		for k, v := range settings {
			all[k] = v
		}
		w := harness.New(t, harness.Options{Daemon: true, Namespace: namespace, Settings: all})
		namespace = w.Namespace
		n := &node{World: w, t: t, name: name, wire: newWire(t, w, wire.Dialer(strings.TrimPrefix(gw.Endpoint, "http://")))}
		q := url.Values{"endpoint": {"http://" + n.wire.Address}, "region": {"us-east-1"}}
		n.configure("store = %q\nstore-key-file = %q\nstore-credentials = %q\n", "s3://"+bucket+"/snapshots?"+q.Encode(), key, gw.Credentials)
		t.Cleanup(n.forget)
		n.must(w.Daemon.Stop(n.context()))
		n.must(w.Daemon.Start(n.context()))
		return n
	}
	return start("node-a"), start("node-b")
}

// peers makes two nodes with one store that ask each other.
func peers(t *testing.T, settings map[string]string) (a, b *node) {
	t.Helper()
	const listens = "127.0.0.1:9477"
	a, b = pair(t, settings)
	for _, n := range []*node{a, b} {
		other := a
		if n == a {
			other = b
		}
		n.peer = newWire(t, other.World, func() (net.Conn, error) { return n.DialNode(context.Background(), "tcp", listens) })
		n.configure("peer-address = %q\npeer-advertise = %q\n", listens, n.peer.Address)
		n.again()
	}
	return a, b
}

// configure adds to the configuration.
func (n *node) configure(format string, args ...any) {
	n.t.Helper()
	f, err := os.OpenFile(n.ConfigFile(), os.O_APPEND|os.O_WRONLY, 0)
	n.must(err)
	_, err = fmt.Fprintf(f, format, args...)
	n.must(errors.Join(err, f.Close()))
}

// forget removes what workloads with an identity leave, and what the daemon remembers.
func (n *node) forget() {
	if n.Containerd.Pid() == 0 {
		n.must(n.Containerd.Start(n.context()))
	}
	n.must(n.RemoveAll(n.context()))
	if err := n.Daemon.Stop(n.context()); err != nil && !errors.Is(err, harness.ErrNotRunning) {
		n.t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(n.DataDir(), "*"))
	n.must(err)
	for _, l := range append(left, filepath.Join(n.DataDir(), ".durable"), filepath.Join(n.RunDir(), "lease.json")) {
		n.must(os.RemoveAll(l))
	}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// server names a server in a pod of its own.
func (n *node) server(id string) *known.Server {
	n.t.Helper()
	return known.New(n.t, n.World, id, n.pod(id))
}

// follows names the server that goes on from another one's state.
func (n *node) follows(o *known.Server, id string) *known.Server {
	n.t.Helper()
	return known.Follow(n.t, o, n.World, id, n.pod(id))
}

// pod makes a network namespace whose address no other node's pod has.
func (n *node) pod(id string) harness.Pod {
	n.t.Helper()
	pod, err := n.NewPod(n.context(), id)
	n.must(err)
	n.t.Cleanup(func() { n.must(n.RemovePod(n.context(), pod)) })
	return pod
}

// db is a container of the identity that the tests are about. pairs are further annotations.
func db(pairs ...string) harness.Container {
	a := map[string]string{"identity": "db", "on-stop": "hibernate"}
	for i := 0; i < len(pairs); i += 2 {
		a[pairs[i]] = pairs[i+1]
	}
	return harness.Container{Annotations: a, Flags: []string{"--null-io"}}
}

// leave stops a server, which puts it to sleep, and removes its container.
func (n *node) leave(s *known.Server) {
	n.t.Helper()
	n.must(n.Kill(n.context(), s.ID, "TERM"))
	n.must(n.WaitTask(n.context(), s.ID, "STOPPED"))
	if got := s.ExitStatus(); got != 0 {
		n.t.Fatalf("it ended with status %d", got)
	}
	n.must(n.Remove(n.context(), s.ID))
}

// began looks how a server was started, or woken last.
func (n *node) began(s *known.Server, outcome string, words ...string) {
	n.t.Helper()
	s.Awake()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	w := now.GetLastWake()
	if w.GetOutcome() != outcome {
		n.t.Fatalf("%q, want %q: %s", w.GetOutcome(), outcome, w.GetDetail())
	}
	n.says(w.GetDetail(), words...)
	var steps []string
	for _, s := range w.GetSteps() {
		steps = append(steps, s.GetName()+" "+strconv.FormatFloat(s.GetMs(), 'f', 1, 64))
	}
	n.t.Logf("%s: %s on %s in %.1f ms: %s", s.ID, outcome, n.name, w.GetTotalMs(), strings.Join(steps, ", "))
}

// refuses looks that a server is not started, and why.
func (n *node) refuses(s *known.Server, c harness.Container, words ...string) {
	n.t.Helper()
	err := s.Resume(c, mib)
	if err == nil {
		n.t.Fatalf("%s was started on %s", s.ID, n.name)
	}
	n.says(err.Error(), words...)
	n.must(n.Remove(n.context(), s.ID))
}

func (n *node) says(text string, words ...string) {
	n.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			n.t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

// ctl runs hibernatectl.
func (n *node) ctl(args ...string) string {
	n.t.Helper()
	out, err := n.Output(n.context(), "hibernatectl", append([]string{"--config", n.ConfigFile()}, args...)...)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.must(err)
	}
	return out
}

// stored waits until the store has a sequence of a server's.
func (n *node) stored(s *known.Server, sequence int) {
	n.t.Helper()
	want := "sequence " + strconv.Itoa(sequence) + ", uploaded"
	known.Eventually(n.t, want, func() bool { return strings.Contains(n.ctl("inspect", s.ID), want) })
}

// newWire passes connections on until the test ends.
func newWire(t *testing.T, w *harness.World, dial func() (net.Conn, error)) *wire.Wire {
	t.Helper()
	r, err := wire.New(w, dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

package executors

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/wire"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
)

// Server is the store's, which can die.
type Server interface {
	Kill()
	Start() error
}

// Store is a bucket of an S3 server that this process reaches by itself. All fields are required.
type Store struct {
	Server      Server
	Address     string // host:port
	Bucket      string
	Credentials string // file, as AWS's tools have it
	Key         string // file of the store's key
}

// takeover is the nodes' takeover-after, the shortest that there is.
const takeover = durable.LeastTakeOver

const (
	image     = "testserver"
	port      = 8080
	heap      = 8 // MiB
	peerPort  = "9477"
	dayLong   = 2 * time.Minute  // bounds opening and closing
	cmdLimit  = 20 * time.Second // bounds one command
	healLimit = 60 * time.Second
)

// A Field is two nodes with one store, and the witness. One run at a time.
type Field struct {
	Store   Store
	Log     func(format string, args ...any) // nil: nothing is told
	Witness *Witness

	nodes  [2]*node
	tier   *durable.Tier
	store  store.Store
	served bool // the store's server runs
}

// node is one of the two.
type node struct {
	*harness.World
	name  string
	store *wire.Wire
	peer  *wire.Wire // of the other node, to this one's daemon
	was   harness.Census
}

// Open makes the nodes.
func (f *Field) Open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, dayLong)
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	f.Witness, f.served = NewWitness(), true
	prefix := "field-" + rand.Text()[:8]
	namespace := ""
	for i, name := range []string{"node-a", "node-b"} {
		n, err := f.newNode(ctx, name, namespace, prefix)
		if n != nil {
			f.nodes[i] = n
			namespace = n.Namespace
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for i, n := range f.nodes {
		other := f.nodes[1-i]
		n.peer, err = wire.New(other.World, func() (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), cmdLimit)
			defer cancel()
			return n.DialNode(ctx, "tcp", "127.0.0.1:"+peerPort)
		})
		if err != nil {
			return err
		}
		if err := n.configure("peer-address = %q\npeer-advertise = %q\n", "127.0.0.1:"+peerPort, n.peer.Address); err != nil {
			return err
		}
		if err := n.Daemon.Start(ctx); err != nil {
			return err
		}
		if n.was, err = n.Census(ctx); err != nil {
			return err
		}
	}
	return f.openTier(prefix)
}

// url is the store's by some address.
func (f *Field) url(address, prefix string) string {
	q := url.Values{"endpoint": {"http://" + address}, "region": {"us-east-1"}, "credentials": {f.Store.Credentials}}
	return "s3://" + f.Store.Bucket + "/" + prefix + "?" + q.Encode()
}

// openTier opens the store as an onlooker.
func (f *Field) openTier(prefix string) (err error) {
	if f.store, err = open.URL(f.url(f.Store.Address, prefix)); err != nil {
		return err
	}
	key, err := durable.KeyFile(f.Store.Key)
	if err != nil {
		return err
	}
	f.tier, err = durable.New(durable.Config{Store: f.store, Keys: durable.Keyring{Current: key}, Node: "witness"})
	return err
}

func (f *Field) newNode(ctx context.Context, name, namespace, prefix string) (*node, error) {
	w, err := harness.Start(ctx, harness.Options{Namespace: namespace, Settings: map[string]string{
		"mode": `"manual"`, "min-awake": `"0s"`, "metrics-address": `"127.0.0.1:9476"`, "node-name": strconv.Quote(name),
		"takeover-after": strconv.Quote(takeover.String()), "ignore": `["from ` + witnessIP + `"]`,
	}})
	if err != nil {
		return nil, err
	}
	n := &node{World: w, name: name}
	if n.store, err = wire.New(w, wire.Dialer(f.Store.Address)); err != nil {
		return n, err
	}
	if err := n.configure("store = %q\nstore-key-file = %q\n", f.url(n.store.Address, prefix), f.Store.Key); err != nil {
		return n, err
	}
	if err := f.Witness.Hear(ctx, name, w); err != nil {
		return n, err
	}
	return n, w.Import(ctx, image)
}

// configure adds to the configuration.
func (n *node) configure(format string, args ...any) error {
	f, err := os.OpenFile(n.ConfigFile(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, format, args...)
	return errors.Join(err, f.Close())
}

// Close looks what the runs have left, and takes the nodes down.
func (f *Field) Close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), dayLong)
	defer cancel()
	for _, n := range f.nodes {
		if n != nil && n.was != nil && n.Containerd.Pid() != 0 {
			err = errors.Join(err, n.tidy(ctx))
		}
	}
	if f.store != nil {
		err = errors.Join(err, f.store.Close())
	}
	err = errors.Join(err, f.Witness.Close())
	for _, n := range f.nodes {
		if n == nil {
			continue
		}
		for _, w := range []*wire.Wire{n.store, n.peer} {
			if w != nil {
				w.Close()
			}
		}
		err = errors.Join(err, n.Close())
	}
	return err
}

// tidy removes what workloads with an identity leave on purpose, and looks for the rest.
func (n *node) tidy(ctx context.Context) error {
	err := n.RemoveAll(ctx)
	if stop := n.Daemon.Stop(ctx); !errors.Is(stop, harness.ErrNotRunning) {
		err = errors.Join(err, stop)
	}
	left, gerr := filepath.Glob(filepath.Join(n.DataDir(), "*"))
	err = errors.Join(err, gerr)
	for _, l := range append(left, filepath.Join(n.DataDir(), ".durable"), n.Path(filepath.Join(n.RunDir(), "lease.json"))) {
		err = errors.Join(err, os.RemoveAll(l))
	}
	if leaks := n.CheckLeaks(ctx, n.was); leaks != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w", n.name, leaks))
	}
	return err
}

// dir is an identity's in the local tier; it may not be there.
func (n *node) dir(identity string) string { return localDir(n.World, identity) }

// LogTails are the ends of the nodes' logs, of so many bytes each.
func (f *Field) LogTails(n int) string {
	var all strings.Builder
	for _, node := range f.nodes {
		if node == nil {
			continue
		}
		for _, p := range []*harness.Program{node.Daemon, node.Containerd} {
			fmt.Fprintf(&all, "--- %s of %s\n%s\n", p.Name, node.name, p.LogTail(n))
		}
	}
	return all.String()
}

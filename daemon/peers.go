package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/daemon/move"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// peers are the node's two ends of the peer path.
type peers struct {
	key       *peer.Key
	client    *peer.Client
	server    *peer.Server
	directory peer.Directory
	contact   func() durable.Contact
	host      *move.Host
	mover     *move.Mover

	mu     sync.Mutex
	sealed string // the contact as it stands in the node's object; guarded by mu
	of     durable.Contact
}

// sealLimit bounds making that: store-key-command may be asked.
const sealLimit = 5 * time.Second

// openPeers makes them, where peer-address is configured. Without them the store is the way, as ever.
func (p *parts) openPeers(opts Options, self fence.Self) {
	if opts.Store.PeerAddress == "" {
		return
	}
	key, err := peer.LoadKey(upload.Dir(opts.DataDir))
	if err != nil {
		opts.Log.Error("other nodes are not asked, nor answered", "error", err)
		return
	}
	directory := peer.StoreDirectory{Tier: func() (*durable.Tier, error) { return p.upload.Tier() }}
	p.peers = &peers{
		key: key, directory: directory,
		client: peer.NewClient(peer.ClientOptions{Node: self.Node, Incarnation: self.Incarnation, Key: key, Directory: directory, Log: opts.Log}),
		contact: func() durable.Contact {
			return durable.Contact{Address: advertised(opts.Store.PeerAddress, opts.Store.PeerAdvertise), Key: key.Fingerprint}
		},
	}
}

// servePeers makes the answering end, once there is somebody who answers.
func (p *parts) servePeers(opts Options, self fence.Self) {
	if p.peers == nil {
		return
	}
	o := peer.ServerOptions{
		Node: self.Node, Incarnation: self.Incarnation, Key: p.peers.key, Directory: p.peers.directory, Workloads: p.upload, Log: opts.Log,
	}
	p.peers.host = &move.Host{
		Ability: ability(opts), Available: opts.Available, Spare: opts.Wakes.Spare, Pulls: p.upload,
		List: func() []*node.Workload { return p.view.List() }, Log: opts.Log,
	}
	o.Host = p.peers.host
	p.peers.mover = &move.Mover{
		Node: self.Node, DataDir: opts.DataDir, Peers: p.peers.client, Rights: p.upload, Ability: ability(opts), Log: opts.Log,
		Memory: func(w *node.Workload) uint64 {
			j, _ := p.keeper.Judgement(w)
			return j.Memory
		},
	}
	p.peers.server = peer.NewServer(o)
}

// unreserved is the memory that wakes may take.
func (p *parts) unreserved(available func() (uint64, error)) func() (uint64, error) {
	return func() (uint64, error) {
		n, err := available()
		if p.peers != nil {
			n -= min(n, p.peers.host.Reserved())
		}
		return n, err
	}
}

// withContact adds this node's contact to what others are told of it.
func (p *parts) withContact(opts Options) func() map[string]string {
	return func() map[string]string {
		facts := make(map[string]string)
		if opts.Store.Facts != nil {
			for k, v := range opts.Store.Facts() {
				facts[k] = v
			}
		}
		if p.peers == nil {
			return facts
		}
		text, err := p.peers.seal(p.upload.Tier)
		if err != nil {
			opts.Log.Warn("other nodes are not told this one's peer-address: it is tried again", "error", err)
			return facts
		}
		facts[durable.ContactFact] = text
		return facts
	}
}

// announceEvery is between two tries to tell others where this node is.
const announceEvery = time.Second

// announce has the node's object tell its contact, also while nothing is claimed here: something may be moved here.
func (p *parts) announce(ctx context.Context) {
	if p.peers == nil {
		return
	}
	for {
		if _, err := p.fence.Need(ctx); err == nil {
			return
		}
		select {
		case <-time.After(announceEvery):
		case <-ctx.Done():
			return
		}
	}
}

// seal makes the contact's fact, once for each contact.
func (p *peers) seal(tier func() (*durable.Tier, error)) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.contact()
	if p.sealed != "" && p.of == c {
		return p.sealed, nil
	}
	t, err := tier()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sealLimit)
	defer cancel()
	text, err := t.Seal(ctx, c)
	if err != nil {
		return "", err
	}
	p.sealed, p.of = text, c
	return text, nil
}

// advertised is where other nodes find a listener.
func advertised(listen, advertise string) string {
	if advertise != "" {
		return advertise
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return net.JoinHostPort(host, port)
}

// listenPeers makes the socket, or none.
func listenPeers(opts Options) (net.Listener, error) {
	if opts.Store == nil || opts.Store.PeerAddress == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", opts.Store.PeerAddress)
	if err != nil {
		return nil, fmt.Errorf("peer-address: %w", err)
	}
	return l, nil
}

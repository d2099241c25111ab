package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Node is what a node tells the others by its object: that it lives, since the counter goes up. docs/FORMAT.md has each field.
type Node struct {
	Name        string            `json:"node"`
	Incarnation string            `json:"incarnation"` // random, of the node's data directory
	Counter     uint64            `json:"counter"`
	Nonce       string            `json:"nonce"`
	TakeOver    time.Duration     `json:"takeover"` // after so much silence, and a margin, others may take over what it has claimed
	Facts       map[string]string `json:"facts,omitempty"`
}

const (
	nodeFormat  = "hibernate.node"
	nodesPrefix = "nodes/"
	maxNode     = 64 << 10
	maxFacts    = 64
	maxFact     = 8 << 10 // of a name and its value

	// LeastTakeOver and MostTakeOver bound a node's TakeOver.
	LeastTakeOver, MostTakeOver = 3 * time.Second, time.Hour
)

// nodeObject is the name of a node's object. A node's name may have anything in it.
func nodeObject(node string) string {
	if checkName(nodesPrefix+node) == nil && node[0] != '~' {
		return nodesPrefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return nodesPrefix + "~" + hex.EncodeToString(sum[:16])
}

func encodeNode(n Node) ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	data, err := encodeDocument(nodeFormat, n)
	if err == nil && len(data) > maxNode {
		err = fmt.Errorf("it would have %d bytes, at most %d are read", len(data), maxNode)
	}
	return data, err
}

func parseNode(object string, data []byte) (n Node, err error) {
	if err := decodeDocument(object, nodeFormat, data, &n); err != nil {
		return Node{}, err
	}
	if err := n.check(); err != nil {
		return Node{}, corrupt(object, "%v", err)
	}
	if nodeObject(n.Name) != object {
		return Node{}, fmt.Errorf("%s: %w: it is of node %q", object, ErrForeign, n.Name)
	}
	return n, nil
}

func (n Node) check() error {
	switch {
	case n.Name == "" || len(n.Name) > 1024:
		return fmt.Errorf("a node's name of %d bytes", len(n.Name))
	case !isHex(n.Incarnation) || !isHex(n.Nonce):
		return fmt.Errorf("incarnation %.40q, nonce %.40q: each has 32 hex digits", n.Incarnation, n.Nonce)
	case n.Counter == 0:
		return errors.New("its counter is 0")
	case n.TakeOver < LeastTakeOver || n.TakeOver > MostTakeOver:
		return fmt.Errorf("taken over after %v, which is between %v and %v", n.TakeOver, LeastTakeOver, MostTakeOver)
	case len(n.Facts) > maxFacts:
		return fmt.Errorf("%d facts, at most %d", len(n.Facts), maxFacts)
	}
	for name, value := range n.Facts {
		if name == "" || len(name)+len(value) > maxFact {
			return fmt.Errorf("fact %.40q of %d bytes, at most %d", name, len(name)+len(value), maxFact)
		}
	}
	return nil
}

func isHex(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && hex.EncodeToString(b) == s
}

// NewIncarnation is a random one.
func NewIncarnation() string { return newOperation().String() }

// NodeTakenError says that a node's object is another one's: a machine of the same name, or this one before its data directory was made
// anew or copied.
type NodeTakenError struct {
	Mine  string // incarnation
	There Node
	seen  store.Version
}

func (e *NodeTakenError) Error() string {
	return fmt.Sprintf("%v: %q is this one (incarnation %s) and %s (incarnation %s): give one of them another node-name",
		ErrNodeTaken, e.There.Name, e.Mine, e.There.where(), e.There.Incarnation)
}

// HostFact is the fact by which a person finds the machine.
const HostFact = "host"

func (n Node) where() string {
	if host := n.Facts[HostFact]; host != "" {
		return "the machine " + host
	}
	return "another machine"
}

// Is makes it an ErrNodeTaken.
func (e *NodeTakenError) Is(target error) bool { return target == ErrNodeTaken }

// Pulse writes this node's object. Its methods are called one at a time.
type Pulse struct {
	t     *Tier
	node  Node
	at    store.Version // of what is there, and ours; "": nothing is, as far as is known
	tried []string      // nonces of writes since the last that was confirmed, which may still be made
	began bool          // it was ours once; from then on nobody else may write it
}

// Pulse of this node, by an incarnation of its own. It does nothing yet.
func (t *Tier) Pulse(incarnation string, takeOver time.Duration) *Pulse {
	return &Pulse{t: t, node: Node{Name: t.cfg.Node, Incarnation: incarnation, TakeOver: takeOver}}
}

// firstBeats is how often the first beat is tried over writes of an earlier process of this node, which come late.
const firstBeats = 3

// Beat writes the object: when it has returned nil the node has lived, for the others, when Beat was called. *NodeTakenError when
// somebody else has written it; so it stays until Displace. After another error nobody knows: Beat is called again.
func (p *Pulse) Beat(ctx context.Context, facts map[string]string) error {
	if p.at != "" {
		return p.write(ctx, facts)
	}
	for try := 1; ; try++ {
		there, version, err := p.read(ctx)
		switch {
		case err != nil:
			return err
		case version != "" && !p.mine(there):
			return p.taken(there, version)
		}
		p.at, p.node.Counter = version, max(p.node.Counter, there.Counter)
		err = p.write(ctx, facts)
		if p.began || try == firstBeats || !errors.Is(err, ErrNodeTaken) {
			return err
		}
	}
}

// mine is true of what this process has written, or before that an earlier one of this node.
func (p *Pulse) mine(there Node) bool {
	return there.Incarnation == p.node.Incarnation && (!p.began || slices.Contains(p.tried, there.Nonce))
}

func (p *Pulse) taken(there Node, version store.Version) error {
	p.at = ""
	return &NodeTakenError{Mine: p.node.Incarnation, There: there, seen: version}
}

// Displace writes the object over exactly that of the error. Its owner must have been silent for long enough: see docs/decisions/0008.
func (p *Pulse) Displace(ctx context.Context, e *NodeTakenError, facts map[string]string) error {
	p.at, p.node.Counter = e.seen, max(p.node.Counter, e.There.Counter)
	return p.write(ctx, facts)
}

// write is one try, and what came of it.
func (p *Pulse) write(ctx context.Context, facts map[string]string) error {
	n := p.node
	n.Counter, n.Nonce, n.Facts = n.Counter+1, newOperation().String(), facts
	data, err := encodeNode(n)
	if err != nil {
		return fmt.Errorf("tell that the node lives: %w", err)
	}
	cond := store.Condition{Version: p.at}
	if p.at == "" {
		cond = store.Condition{Absent: true}
	}
	p.tried = append(p.tried, n.Nonce)
	if len(p.tried) > triedKept {
		p.tried = p.tried[1:]
	}
	version, err := p.t.cfg.Store.Put(ctx, nodeObject(n.Name), data, cond)
	if err == nil {
		p.confirmed(n, version)
		return nil
	}
	there, version, rerr := p.read(ctx)
	switch {
	case rerr == nil && there.Nonce == n.Nonce:
		p.confirmed(n, version)
		return nil
	case rerr == nil && version != "" && slices.Contains(p.tried, there.Nonce): // one of before, whose answer was lost
		p.at, p.node.Counter, p.began = version, there.Counter, true
	case rerr == nil && version == "": // somebody has deleted it
		p.at = ""
	case rerr == nil && version != cond.Version:
		return p.taken(there, version)
	}
	return fmt.Errorf("tell that the node lives: %w", errors.Join(err, rerr))
}

// triedKept bounds how many writes may be under way somewhere.
const triedKept = 64

func (p *Pulse) confirmed(n Node, version store.Version) {
	p.node.Counter, p.at, p.began, p.tried = n.Counter, version, true, p.tried[len(p.tried)-1:]
}

// read gives no version where there is nothing.
func (p *Pulse) read(ctx context.Context) (Node, store.Version, error) {
	s, err := p.t.Node(ctx, p.node.Name)
	if err == nil {
		err = s.Err
	}
	return s.Node, s.Version, err
}

// Sighting is a node's object as it was at some time.
type Sighting struct {
	Node
	Version store.Version // "": there is none
	Err     error         // why the object can't be read; it is there, and may change
}

// Same is true when nobody has written the object between two sightings.
func (s Sighting) Same(other Sighting) bool {
	if s.Nonce != "" && other.Nonce != "" {
		return s.Nonce == other.Nonce
	}
	return s.Version == other.Version
}

// Node reads the object of one.
func (t *Tier) Node(ctx context.Context, node string) (Sighting, error) {
	return t.sight(ctx, nodeObject(node))
}

func (t *Tier) sight(ctx context.Context, object string) (s Sighting, err error) {
	data, info, err := t.cfg.Store.Get(ctx, object, maxNode)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return s, nil
	case errors.Is(err, store.ErrTooLarge):
		return Sighting{Version: "too large", Err: corrupt(object, "longer than %d bytes", maxNode)}, nil
	case err != nil:
		return s, fmt.Errorf("read what a node tells: %w", err)
	}
	s.Version = info.Version
	s.Node, s.Err = parseNode(object, data)
	return s, nil
}

// nodesAtOnce bounds how many are read at a time.
const nodesAtOnce = 8

// Nodes are all that have ever told that they live, by the names of their objects. Of those that known has, only what has changed is read.
func (t *Tier) Nodes(ctx context.Context, known map[string]Sighting) (map[string]Sighting, error) {
	infos, _, err := t.cfg.Store.List(ctx, nodesPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var mu sync.Mutex // guards all
	all := make(map[string]Sighting, len(infos))
	var g errgroup.Group
	g.SetLimit(nodesAtOnce)
	for _, i := range infos {
		if checkName(i.Name) != nil {
			continue
		}
		if k, ok := known[i.Name]; ok && i.Version != "" && k.Version == i.Version {
			mu.Lock()
			all[i.Name] = k
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			s, err := t.sight(ctx, i.Name)
			mu.Lock()
			defer mu.Unlock()
			all[i.Name] = s
			return err
		})
	}
	return all, g.Wait()
}

// NodeObject is the name by which Nodes tells of a node.
func NodeObject(node string) string { return nodeObject(node) }

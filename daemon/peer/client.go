package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// ClientOptions of a Client. All but Log are required.
type ClientOptions struct {
	Node, Incarnation string
	Key               *Key
	Directory         Directory
	Log               *slog.Logger
}

// Client asks other nodes.
type Client struct {
	o ClientOptions

	mu    sync.Mutex
	nodes map[string]*reached // guarded by mu
}

// reached is what is known of a node.
type reached struct {
	contact     durable.Contact
	incarnation string
	until       time.Time // the contact is read again then
	http        *http.Client
	away        time.Time // until then it isn't tried again
	why         error
}

const (
	// contactFor is how long a contact needn't be read again.
	contactFor = 10 * time.Second
	// awayFor is how long a node that can't be reached isn't tried again: the store is the way meanwhile.
	awayFor = 3 * time.Second
	// dialLimit bounds the connection with its handshake.
	dialLimit = 2 * time.Second
	// answerLimit bounds the answer to what waits for nothing.
	answerLimit = 12 * time.Second
)

// NewClient makes one that does nothing yet.
func NewClient(o ClientOptions) *Client {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{o: o, nodes: make(map[string]*reached)}
}

// Close ends connections that nobody uses.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.http != nil {
			n.http.CloseIdleConnections()
		}
	}
}

// Fetch brings the snapshot with which a workload sleeps at its owner into dir, and waits up to wait for it to sleep. tell is told of the bytes that
// have come, and of all. Errors: ErrRuns, ErrUnavailable, *IdentityError.
func (c *Client) Fetch(ctx context.Context, a Ask, dir string, tell func(done, all int64)) (*snapshot.Snapshot, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := time.AfterFunc(min(a.Wait, longestWait)+answerLimit, func() { cancel(errStalled) })
	defer alive.Stop()
	resp, err := c.ask(ctx, "fetch", a)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s, err := c.receive(ctx, a, resp.Body, dir, func(done, all int64) {
		alive.Reset(stall)
		tell(done, all)
	})
	var identity *IdentityError
	if err != nil && !errors.As(err, &identity) {
		return nil, c.unavailable(a.Owner.Node, cause(ctx, err))
	}
	return s, err
}

var errStalled = fmt.Errorf("nothing came for %v", stall)

// cause is why ctx has ended, if it has, with the error that this has made.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

func (c *Client) receive(ctx context.Context, a Ask, body io.Reader, dir string, tell func(done, all int64)) (*snapshot.Snapshot, error) {
	var head [8]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint64(head[:])
	if length > maxDocument {
		return nil, fmt.Errorf("a manifest of %d bytes: at most %d are taken", length, maxDocument)
	}
	document := make([]byte, length)
	if _, err := io.ReadFull(body, document); err != nil {
		return nil, err
	}
	r, err := snapshot.NewReceiving(dir, document)
	if err != nil {
		return nil, err
	}
	if m := r.Manifest(); m.Namespace != a.Namespace || m.Identity != a.Identity {
		return nil, errors.Join(r.Discard(), &IdentityError{
			What: fmt.Sprintf("node %s was asked for %s, and sends %s/%s", a.Owner.Node, a.workload(), m.Namespace, m.Identity), Do: "report this: it should be impossible",
		})
	}
	var done int64
	return r.Take(ctx, body, func(n int64) {
		done += n
		tell(done, r.Size())
	})
}

// maxDocument bounds a manifest.json.
const maxDocument = 64 << 20

// Yield asks for the claim: nil means that its owner won't run the workload again before it has changed the head. Errors as of Fetch.
func (c *Client) Yield(ctx context.Context, a Ask) error { return c.tell(ctx, "yield", a) }

// Taken tells a claim's former owner that it is one.
func (c *Client) Taken(ctx context.Context, a Ask) error { return c.tell(ctx, "taken", a) }

// Target is a node that something may be moved to, to be asked as the Owner of an Ask. Errors as of Fetch.
func (c *Client) Target(ctx context.Context, node string) (durable.Owner, error) {
	n, err := c.find(ctx, node, nil)
	if err != nil {
		return durable.Owner{}, err
	}
	return durable.Owner{Node: node, Incarnation: n.incarnation}, nil
}

// Reserve asks a node whether it takes a workload, and keeps memory for it. ErrRefused, and errors as of Fetch.
func (c *Client) Reserve(ctx context.Context, a Ask) error { return c.tell(ctx, "reserve", a) }

// Pull has a node take a workload from here, which takes up to a.Wait. ErrRefused, and errors as of Fetch; after any of them it may have it.
func (c *Client) Pull(ctx context.Context, a Ask) (p Pulled, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.Wait+answerLimit)
	defer cancel()
	resp, err := c.ask(ctx, "pull", a)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&p); err != nil {
		return p, c.unavailable(a.Owner.Node, cause(ctx, err))
	}
	return p, nil
}

func (c *Client) tell(ctx context.Context, what string, a Ask) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	resp, err := c.ask(ctx, what, a)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ask makes a request; its answer is one that went well.
func (c *Client) ask(ctx context.Context, what string, a Ask) (*http.Response, error) {
	node := a.Owner.Node
	n, err := c.reach(ctx, a.Owner)
	if err != nil {
		return nil, err
	}
	a.Node, a.Incarnation = c.o.Node, c.o.Incarnation
	data, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+n.contact.Address+"/1/"+what, bytes.NewReader(data))
	if err != nil {
		return nil, c.unavailable(node, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.http.Do(req)
	if err != nil {
		var identity *IdentityError
		if errors.As(err, &identity) {
			c.forget(node)
			return nil, identity
		}
		return nil, c.unavailable(node, cause(ctx, err))
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent {
		return resp, nil
	}
	defer resp.Body.Close()
	var r Refusal
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&r); err != nil {
		return nil, c.unavailable(node, fmt.Errorf("it answers %s", resp.Status))
	}
	if r.Class == classIdentity {
		c.forget(node)
	}
	return nil, r.err(node)
}

// reach gives the way to a claim's owner.
func (c *Client) reach(ctx context.Context, o durable.Owner) (*reached, error) {
	c.mu.Lock()
	n := c.nodes[o.Node]
	c.mu.Unlock()
	now := time.Now()
	if n != nil && now.Before(n.away) {
		return nil, fmt.Errorf("%w: node %s: %w", ErrUnavailable, o.Node, n.why)
	}
	if n == nil || n.http == nil || now.After(n.until) {
		var err error
		if n, err = c.find(ctx, o.Node, n); err != nil {
			return nil, err
		}
	}
	if n.incarnation != o.Incarnation {
		return nil, fmt.Errorf("%w: incarnation %s of node %s has claimed it, and its object in the store is incarnation %s's: its data directory was made anew, or copied",
			ErrUnavailable, o.Incarnation, o.Node, n.incarnation)
	}
	return n, nil
}

// find reads a node's contact, and goes on with its connections where that is as it was.
func (c *Client) find(ctx context.Context, node string, before *reached) (*reached, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	contact, incarnation, err := c.o.Directory.Contact(ctx, node)
	if err == nil && contact.Address == "" {
		err = durable.ErrNoContact
	}
	if err != nil {
		err = unknown(node, err)
		var identity *IdentityError
		if !errors.As(err, &identity) {
			err = c.unavailable(node, err)
		}
		return nil, err
	}
	n := &reached{contact: contact, incarnation: incarnation, until: time.Now().Add(contactFor)}
	if before != nil && before.http != nil && before.contact == contact {
		n.http = before.http
	} else {
		n.http = c.transport(node, contact)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[node] = n
	return n, nil
}

// transport connects to nobody but who has the key.
func (c *Client) transport(node string, contact durable.Contact) *http.Client {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.o.Key.certificate},
		InsecureSkipVerify: true, // nobody signs: the key itself is compared, below
		VerifyConnection: func(s tls.ConnectionState) error {
			if got := fingerprint(s.PeerCertificates[0]); got != contact.Key {
				return &IdentityError{
					What: fmt.Sprintf("who answers at %s for node %s has the key %s…, and the store names %s…", contact.Address, node, shown(got), shown(contact.Key)),
					Do:   "look who has that address, and node " + node + "'s peer-address",
				}
			}
			return nil
		},
	}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialLimit}, Config: config}
	return &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			return dialer.DialContext(ctx, network, address)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, ReadBufferSize: 64 << 10,
	}}
}

func (c *Client) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node)
}

// unavailable has a node be left alone for a moment.
func (c *Client) unavailable(node string, why error) error {
	if errors.Is(why, context.Canceled) {
		return fmt.Errorf("%w: %w", ErrUnavailable, why)
	}
	c.mu.Lock()
	n := c.nodes[node]
	if n == nil {
		n = &reached{}
	}
	fresh := *n
	fresh.away, fresh.why, fresh.until = time.Now().Add(awayFor), why, time.Time{}
	c.nodes[node] = &fresh
	c.mu.Unlock()
	if errors.Is(why, ErrUnavailable) {
		return why
	}
	return fmt.Errorf("%w: node %s: %w", ErrUnavailable, node, why)
}

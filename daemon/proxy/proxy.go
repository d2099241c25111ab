// Package proxy runs the wake proxy of each registered workload: it joins the shim's listeners, the shim's Wake and
// the pod's network namespace to package wakeproxy.
//
// Vocabulary:
//
//   - session: the proxy of one workload, from its first offer to its end.
//   - offer: a target address, the pod's namespace, and one listening socket for each port. A later offer replaces an
//     earlier one; a port whose socket is the same one goes on undisturbed.
//   - orphan: a session whose shim has died without a word. It goes on holding, until the workload's next shim adopts it.
//
// The listening sockets are the shim's. Whatever happens here, connections in their backlog stay for whoever has the
// socket next.
package proxy

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Waker is what a session needs of the shim.
type Waker interface {
	Wake(ctx context.Context, req *shimv1.WakeRequest) (*shimv1.WakeResponse, error)
}

// Admission says when a workload's wake may begin.
type Admission interface {
	// Admit waits for the workload's turn. The wake counts until release is called. The error is the cause of ctx, or one that
	// says that there is no sense in waiting now, a wakeproxy.Later.
	Admit(ctx context.Context, key node.Key, need uint64) (release func(), err error)
}

// Meter counts what sessions do. Its methods must be quick.
type Meter interface {
	Held(namespace string)
	Accepted()
	Limited()
	WakeCallFailed()
	// ShimSilent counts wakes that a shim has given no sign of for a while.
	ShimSilent()
	// ClientRefused counts clients that were refused: how, and why.
	ClientRefused(answer, reason string)
	Drained(in, out int64, dial time.Duration, err error)
}

// Options are shared by all sessions of a daemon. Dial, Node and Meter are required.
type Options struct {
	// Dial connects to the target from within the pod's namespace with the client's address.
	Dial func(ctx context.Context, pod *os.File, client, target netip.AddrPort) (net.Conn, error)
	// Node is the limit that all sessions share.
	Node *wakeproxy.Node
	// Limits of a workload that has told none of its own.
	Limits wakeproxy.Limits
	// AnswerHTTP as wakeproxy has it.
	AnswerHTTP bool
	// Admission of wakes; nil for all at once.
	Admission Admission
	// WakeTimeout bounds one call of Wake; a shim that does not answer is asked again. Default 60 s.
	WakeTimeout time.Duration
	// SilentAfter is how long a shim may give no sign of a wake before that is told. Default 5 s.
	SilentAfter time.Duration
	// Grace is how long connections may go on when their session ends. Default 10 s.
	Grace time.Duration
	Meter Meter
	Log   *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.WakeTimeout <= 0 {
		o.WakeTimeout = time.Minute
	}
	if o.SilentAfter <= 0 {
		o.SilentAfter = 5 * time.Second
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Offer is what a shim hands over. Offering it makes the session the owner of its files.
type Offer struct {
	Target    netip.Addr // none: the workload can't be reached yet
	Pod       *os.File
	PodPath   string // where Pod is found as long as it is in use; "" when it goes with the container
	Listeners map[uint16]*os.File
}

// Close closes the files of an offer that was not made.
func (o Offer) Close() {
	for _, file := range o.Listeners {
		closeFile(file)
	}
	closeFile(o.Pod)
}

func closeFile(file *os.File) {
	if file != nil {
		_ = file.Close()
	}
}

// Begin starts a session for a workload. It serves nothing before the first offer.
func Begin(opts Options, w *node.Workload) *Session {
	opts = opts.withDefaults()
	s := &Session{
		opts: opts, key: w.Key, shim: shim{w.Shim, w}, ports: make(map[uint16]*port), reachable: closed(),
		log: opts.Log.With("namespace", w.Namespace, "id", w.ID),
	}
	s.proxy.Store(s.newProxy())
	return s
}

func (s *Session) newProxy() *wakeproxy.Proxy {
	return wakeproxy.New(wakeproxy.Options{
		Waker: s, Dialer: s, Node: s.opts.Node, LimitsNow: s.limits, AnswerHTTP: s.opts.AnswerHTTP,
		// A port that is no longer offered accepts no more; its connections go on until the session ends.
		Grace: wakeproxy.Unlimited, Log: s.log, Observer: observer{s},
	})
}

// Package node is the daemon's view of the shims on its node.
//
// Vocabulary:
//
//   - workload: what one shim runs, under its Key. It is in the view as long as something vouches for it.
//   - voucher: a record under <run-dir>/shims whose process lives, or a registration that is connected.
//   - watch: the stream of state changes that the view keeps open to each shim.
//   - role: a function that runs for each workload for as long as it is in the view (Options.Roles).
//
// The view holds nothing that it did not get from the shims, so it needs no storage: a new daemon's view is complete
// after one scan of the records. Each workload has goroutines of its own, so a shim that does not answer holds up nobody.
package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Key names a workload: containerd's namespace, and the id of the pod's sandbox or of the container.
type Key struct{ Namespace, ID string }

// String is the form in which people type a key.
func (k Key) String() string { return k.Namespace + "/" + k.ID }

// Compare orders keys by namespace, then id.
func (k Key) Compare(other Key) int {
	if c := strings.Compare(k.Namespace, other.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.ID, other.ID)
}

// Shim is what the view needs of a shim's client. Calls end with their context; after Close they fail.
type Shim interface {
	// Watch calls fn with each event, the present state first, until ctx ends or the stream breaks. It never returns nil.
	Watch(ctx context.Context, fn func(*shimv1.Event)) error
	Activity(ctx context.Context) (*shimv1.ActivityResponse, error)
	Hibernate(ctx context.Context, req *shimv1.HibernateRequest) (*shimv1.HibernateResponse, error)
	Wake(ctx context.Context, req *shimv1.WakeRequest) (*shimv1.WakeResponse, error)
	EndSleeper(ctx context.Context, req *shimv1.EndSleeperRequest) (*shimv1.EndSleeperResponse, error)
	Fence(ctx context.Context, req *shimv1.FenceRequest) (*shimv1.FenceResponse, error)
	Close() error
}

// Found is a shim that a scan found.
type Found struct {
	Key
	Address string
}

// Options of a View. Dial and Scan are required.
type Options struct {
	// Dial makes a client for a shim's ttrpc address; it does not connect yet.
	Dial func(address string) Shim
	// Scan lists the shims whose records are there and whose processes live.
	Scan func() ([]Found, error)
	// ScanEvery is the time between scans. Default 2 s.
	ScanEvery time.Duration
	// Roles run for each workload until it leaves the view, when ctx ends; the view waits for them.
	Roles []func(ctx context.Context, w *Workload)
	// OnEvent sees each event of each workload. It must be quick.
	OnEvent func(w *Workload, event *shimv1.Event)
	// OnGone is called when a workload has left the view and its roles have ended.
	OnGone func(w *Workload)
	Log    *slog.Logger
}

// errLeft is the cause with which a workload's roles end.
var errLeft = errors.New("the workload left the view")

func (o Options) withDefaults() Options {
	if o.ScanEvery <= 0 {
		o.ScanEvery = 2 * time.Second
	}
	if o.OnEvent == nil {
		o.OnEvent = func(*Workload, *shimv1.Event) {}
	}
	if o.OnGone == nil {
		o.OnGone = func(*Workload) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

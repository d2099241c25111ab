// Package registry takes the registrations of shims: for as long as a shim stays connected its workload is in the view,
// and the wake proxy serves the listeners that it handed over.
//
// A shim says when its workload has ended; then its clients are reset at once. One that goes without a word has died, and
// its container may be started again: its session is an *orphan* then, held for a while (Registry.Keep) for the shim that
// comes next, which gets the listening sockets back with its first registration.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/proxy"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// View is where registered workloads appear.
type View interface {
	// Register vouches for a workload until release. It returns nil when the view is closed.
	Register(key node.Key, address string) (w *node.Workload, release func())
}

// Registry serves the registration socket.
type Registry struct {
	View  View
	Proxy proxy.Options
	// Keep is how long the connections of a shim that died wait for another one; 0 for not at all.
	Keep time.Duration
	// CarryOn, when set, is given the connections that the daemon passes on when it ends, instead of their grace. It may be
	// called from several goroutines.
	CarryOn func(node.Key, []wakeproxy.Detached)
	Log     *slog.Logger

	orphans orphans
}

// acceptPause is the wait after an Accept that failed, for instance for want of descriptors.
const acceptPause = 100 * time.Millisecond

// Run takes registrations until ctx ends. Then it closes the server, lets the shims know, and returns when the last
// connection was drained, or its grace was over, or it was given to CarryOn.
func (r *Registry) Run(ctx context.Context, server *handover.Server) error {
	var peers sync.WaitGroup
	defer peers.Wait()
	defer server.Close()
	for {
		peer, err := server.Accept(ctx)
		switch {
		case err == nil:
			peers.Go(func() { r.serve(ctx, peer) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("registrations end: %w", err)
		default:
			r.Log.Warn("a shim could not register", "error", err)
			if !errors.Is(err, handover.ErrCredentials) {
				pause(ctx, acceptPause)
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve takes what one shim says until it is gone.
func (r *Registry) serve(ctx context.Context, peer *handover.Peer) {
	var reg *registration
	defer func() {
		_ = peer.Close() // first: the shim takes over while connections are drained
		if reg != nil {
			r.leave(ctx, reg)
		}
	}()
	for {
		hello, files, err := peer.Receive(ctx)
		if errors.Is(err, handover.ErrEnded) {
			if reg != nil {
				reg.session.Reset()
			}
			continue
		}
		if errors.Is(err, handover.ErrMalformed) || errors.Is(err, handover.ErrVersion) {
			r.Log.Warn("a shim's hello was refused", "pid", peer.Pid, "error", err)
			continue
		}
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, handover.ErrGone) {
				r.Log.Warn("a registration broke", "pid", peer.Pid, "error", err)
			}
			return
		}
		asks := reg == nil || len(hello.Ports) == 0 // the answer before may have come too late for the shim
		if reg, err = r.take(reg, hello, files); err != nil {
			r.Log.Warn("a shim's hello was refused", "namespace", hello.Namespace, "id", hello.ID, "error", err)
		} else if asks {
			r.giveBack(peer, reg)
		}
		if err := peer.Acknowledge(err); err != nil {
			return
		}
	}
}

// take makes or updates a registration; with an error the earlier one holds. It owns the files.
func (r *Registry) take(reg *registration, hello handover.Hello, files []*os.File) (*registration, error) {
	offer := offerOf(hello, files)
	if reg == nil {
		reg = r.begin(hello, offer.Pod)
		if reg == nil {
			offer.Close()
			return nil, errors.New("the daemon is stopping")
		}
	} else if reg.workload.Key != keyOf(hello) || reg.workload.Address != hello.Address {
		offer.Close()
		return reg, fmt.Errorf("this connection has registered %s at %s", reg.workload.Key, reg.workload.Address)
	}
	if err := reg.session.Offer(offer); err != nil {
		return reg, err
	}
	r.Log.Info("registered", "namespace", hello.Namespace, "id", hello.ID, "ports", hello.Ports, "version", hello.Version)
	return reg, nil
}

// registration is one shim's, while it is connected.
type registration struct {
	workload *node.Workload
	session  *proxy.Session
	release  func()
	unproxy  func()
}

func (r *Registry) begin(hello handover.Hello, pod *os.File) *registration {
	w, release := r.View.Register(keyOf(hello), hello.Address)
	if w == nil {
		return nil
	}
	reg := &registration{workload: w, release: release}
	if reg.session = r.adopt(reg, pod); reg.session == nil {
		reg.session = proxy.Begin(r.Proxy, w)
	}
	reg.unproxy = w.SetProxying(reg.session)
	return reg
}

func keyOf(hello handover.Hello) node.Key {
	return node.Key{Namespace: hello.Namespace, ID: hello.ID}
}

// offerOf sorts a hello's files, whose number the receiver has checked.
func offerOf(hello handover.Hello, files []*os.File) proxy.Offer {
	offer := proxy.Offer{Target: hello.Target, Pod: files[0], PodPath: hello.PodPath, Listeners: make(map[uint16]*os.File, len(hello.Ports))}
	for i, port := range hello.Ports {
		if offer.Listeners[port] != nil {
			_ = files[i+1].Close() // the same port twice
			continue
		}
		offer.Listeners[port] = files[i+1]
	}
	return offer
}

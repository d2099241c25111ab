package registry

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/proxy"
)

// podCheck is the pause between two looks whether an orphan's network namespace is still in use. It would live on by our
// descriptors.
const podCheck = 200 * time.Millisecond

// orphan is the session of a shim that died.
type orphan struct {
	session *proxy.Session
	settled chan struct{} // closed when it is known whether there is anything to keep
	kept    bool          // there is; set before settled is closed
	taken   chan struct{} // closed when it is nobody's orphan any more
	why     string        // it was taken, where not to be adopted; set before taken is closed
}

func newOrphan(s *proxy.Session) *orphan {
	return &orphan{session: s, settled: make(chan struct{}), taken: make(chan struct{})}
}

// orphans are those that wait.
type orphans struct {
	mu     sync.Mutex
	all    map[node.Key]*orphan       // guarded by mu
	newest map[node.Key]*registration // guarded by mu; of those that are connected
}

// exit ends a registration. Its session waits as an orphan from here on, for an adopter that may come at once; nil when the
// workload's shim has registered anew already.
func (o *orphans) exit(reg *registration) *orphan {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := reg.workload.Key
	if o.newest[key] != reg {
		return nil
	}
	delete(o.newest, key)
	if o.all == nil {
		o.all = make(map[node.Key]*orphan)
	}
	one := newOrphan(reg.session) // there is no other: the registration has taken it
	o.all[key] = one
	return one
}

// remove reports false when it was taken.
func (o *orphans) remove(key node.Key, one *orphan) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[key] != one {
		return false
	}
	delete(o.all, key)
	return true
}

// enter begins a registration. It returns the orphan that the shim, in a pod's namespace, may adopt; nil when there is none.
// Others that are in its way are given up: those of the same workload elsewhere, and those of others in the same namespace.
func (o *orphans) enter(reg *registration, pod *os.File) *orphan {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := reg.workload.Key
	if o.newest == nil {
		o.newest = make(map[node.Key]*registration)
	}
	o.newest[key] = reg
	var mine *orphan
	for k, one := range o.all {
		same := one.session.InPod(pod)
		switch {
		case k == key && same:
			mine = one
			close(one.taken)
		case k == key:
			one.giveUp("the workload was started in another network namespace")
		case same:
			one.giveUp("its network namespace has got another workload, " + key.String())
		default:
			continue
		}
		delete(o.all, k)
	}
	return mine
}

func (one *orphan) giveUp(why string) {
	one.why = why
	close(one.taken)
}

// leave ends a registration whose connection is gone: at once, unless its shim has died and left somebody waiting.
func (r *Registry) leave(ctx context.Context, reg *registration) {
	one := r.orphans.exit(reg)
	reg.unproxy()
	reg.release() // the workload leaves the view before its connections are drained
	if one == nil {
		r.end(ctx, reg)
		return
	}
	one.kept = ctx.Err() == nil && r.Keep > 0 && one.session.Orphan()
	close(one.settled)
	if !one.kept {
		r.orphans.remove(reg.workload.Key, one)
		r.end(ctx, reg)
		return
	}
	log := r.Log.With("namespace", reg.workload.Namespace, "id", reg.workload.ID)
	log.Warn("the shim is gone without a word: its connections wait for the container to be started again",
		"for", r.Keep.String(), "connections", connections(one.session))
	why := r.keep(ctx, one)
	if !r.orphans.remove(reg.workload.Key, one) {
		<-one.taken
		if why = one.why; why == "" {
			return // adopted
		}
	}
	log.Warn("the connections of a shim that is gone are closed", "reason", why, "connections", connections(one.session))
	one.session.Reset()
	one.session.End()
}

// end ends a session. When the daemon does, too, its connections may go on.
func (r *Registry) end(ctx context.Context, reg *registration) {
	if ctx.Err() == nil || r.CarryOn == nil {
		reg.session.End()
		return
	}
	if loose := reg.session.Detach(); len(loose) > 0 {
		r.CarryOn(reg.workload.Key, loose)
	}
}

func connections(s *proxy.Session) int {
	n, _ := s.Use()
	return n
}

// keep waits until an orphan is taken, or there is no more sense in waiting: then it says why.
func (r *Registry) keep(ctx context.Context, one *orphan) string {
	timer := time.NewTimer(r.Keep)
	defer timer.Stop()
	look := time.NewTicker(podCheck)
	defer look.Stop()
	for {
		select {
		case <-one.taken:
			return ""
		case <-timer.C:
			return "the container was not started again within " + r.Keep.String()
		case <-ctx.Done():
			return "the daemon stops"
		case <-look.C:
			if !one.session.PodInUse() {
				return "its network namespace is gone"
			}
		}
	}
}

// adopt gives the workload's orphan to its new shim; nil when there is none.
func (r *Registry) adopt(reg *registration, pod *os.File) *proxy.Session {
	w, one := reg.workload, r.orphans.enter(reg, pod)
	if one == nil {
		return nil
	}
	if <-one.settled; !one.kept {
		return nil
	}
	one.session.Adopt(w)
	r.Log.Info("the container is started again: its connections are kept", "namespace", w.Namespace, "id", w.ID,
		"ports", one.session.Ports(), "connections", connections(one.session))
	return one.session
}

// giveBack returns what an earlier shim of the workload has left, so that this one doesn't make listeners of its own beside.
func (r *Registry) giveBack(peer *handover.Peer, reg *registration) {
	if err := peer.Return(reg.session.Kept()); err != nil {
		r.Log.Warn("listening sockets could not be given back", "workload", reg.workload.Key.String(), "error", err)
	}
}

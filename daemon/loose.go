package daemon

import (
	"sync"

	"github.com/hibernate-runtime/hibernate/daemon/drainer"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// loose gathers the connections that are let go of when the daemon ends.
type loose struct {
	mu  sync.Mutex
	all []drainer.Workload // guarded by mu
}

func (l *loose) add(key node.Key, connections []wakeproxy.Detached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, drainer.Workload{Namespace: key.Namespace, ID: key.ID, Connections: connections})
}

// carryOn gives all to those who carry them on. Nothing is added any more.
func (l *loose) carryOn(opts Options) error {
	if len(l.all) == 0 {
		return nil
	}
	n := 0
	for _, w := range l.all {
		n += len(w.Connections)
	}
	if err := opts.CarryOn(l.all); err != nil {
		return err
	}
	opts.Log.Info("connections are carried on by a process of their own", "connections", n, "workloads", len(l.all))
	return nil
}

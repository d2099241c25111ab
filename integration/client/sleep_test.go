package client

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// sleepLimit bounds one hibernation that somebody keeps from ending.
const sleepLimit = 30 * time.Second

// A lullaby puts every container to sleep as soon as it can sleep, again and again, between the requests of the tests.
type lullaby struct {
	world
	sung   sync.WaitGroup
	asked  sync.Map // the addresses of shims that are being asked
	slept  atomic.Int64
	cancel context.CancelFunc
}

func (w world) lull(ctx context.Context) *lullaby {
	l := &lullaby{world: w}
	ctx, l.cancel = context.WithCancel(ctx)
	l.sung.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				l.round(ctx)
			}
		}
	})
	return l
}

// round asks those that are not being asked already.
func (l *lullaby) round(ctx context.Context) {
	records, err := handover.ListRecords(l.RunDir())
	if err != nil {
		return // a record that is being written: the next round finds it
	}
	for _, r := range records {
		if _, busy := l.asked.LoadOrStore(r.Address, true); busy {
			continue
		}
		l.sung.Go(func() {
			defer l.asked.Delete(r.Address)
			if l.hibernate(ctx, r) {
				l.slept.Add(1)
			}
		})
	}
}

// hibernate says whether it fell asleep. What has ended, or is needed, refuses.
func (l *lullaby) hibernate(ctx context.Context, r handover.Record) bool {
	ctx, cancel := context.WithTimeout(ctx, sleepLimit)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", l.Path(strings.TrimPrefix(r.Address, "unix://")))
	if err != nil {
		return false
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	answer, err := shimv1.NewTTRPCShimClient(client).Hibernate(ctx, &shimv1.HibernateRequest{Reason: "test", Manual: true})
	return err == nil && answer.GetTransition().GetOutcome() == "slept"
}

// end tells how many hibernations there were: with none the tests were run in vain.
func (l *lullaby) end(t *testing.T) {
	t.Helper()
	l.cancel()
	l.sung.Wait()
	t.Logf("%d hibernations", l.slept.Load())
	if l.slept.Load() == 0 {
		t.Error("nothing fell asleep")
	}
}

package admission

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

type noMeter struct{}

func (noMeter) WakeWaited(time.Duration) {}
func (noMeter) WakeRefused(string)       {}

// While wakes are closed nobody's begins, whoever waits is told why, and goes on when they are opened again, or when the workload is woken by
// request.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Bool
		closed.Store(true)
		c := New(Options{Limits: Limits{Wakes: 2, Queue: 9}, Meter: noMeter{}, Closed: func() string {
			if closed.Load() {
				return "better times"
			}
			return ""
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() { defer close(ran); c.Run(ctx) }()
		admit := func(id string) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := c.Admit(t.Context(), node.Key{Namespace: "a", ID: id}, 1)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first, second := admit("1"), admit("2")
		time.Sleep(time.Hour)
		select {
		case <-first:
			t.Fatal("its wake begins")
		default:
		}
		if got := c.Waits(node.Key{Namespace: "a", ID: "1"}); !strings.HasPrefix(got, "better times, for 1h") {
			t.Errorf("it waits for %q", got)
		}
		c.Changed(node.Key{Namespace: "a", ID: "2"}, "waking", 1)
		if err := <-second; err != nil {
			t.Error("woken by request:", err)
		}
		closed.Store(false)
		if err := <-first; err != nil {
			t.Error("opened again:", err)
		}
		cancel()
		<-ran
	})
}

package expire

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

// view is one of shims, watched until the test ends.
func view(t *testing.T, shims ...*shimtest.Shim) *node.View {
	t.Helper()
	v := node.Open(node.Options{
		Dial: func(address string) node.Shim { return shimclient.New(address) },
		Scan: func() (found []node.Found, err error) {
			for _, s := range shims {
				found = append(found, node.Found{Key: node.Key{Namespace: s.Namespace, ID: s.ID}, Address: s.Address})
			}
			return found, nil
		},
	})
	t.Cleanup(v.Close)
	return v
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it doesn't come to this: %s", what)
		}
	}
}

// asleep has a shim tell that its workload sleeps since then.
func asleep(s *shimtest.Shim, ago time.Duration, after string, container string) {
	s.Update(func(st *shimv1.StatusResponse, _ *shimv1.ActivityResponse) {
		st.State, st.StateSinceUnixMs, st.Sequence = "asleep", time.Now().Add(-ago).UnixMilli(), 3
		st.Settings = []*shimv1.Setting{{Key: "delete-after", Value: after}}
		st.Containers = []*shimv1.Container{{Id: s.ID, State: container}}
	})
}

// TestExpired: only the sleeper whose time is over is ended, once, and told; one whose time comes is told before.
func TestExpired(t *testing.T) {
	over, near, far := shimtest.Start(t, "default", "over"), shimtest.Start(t, "default", "near"), shimtest.Start(t, "default", "far")
	never, paused, awake := shimtest.Start(t, "default", "never"), shimtest.Start(t, "default", "paused"), shimtest.Start(t, "default", "awake")
	asleep(over, 2*time.Hour, "200ms", "running") // it is told for a quarter of that
	asleep(near, 50*time.Minute, "1h0m0s", "running")
	asleep(far, 10*time.Minute, "1h0m0s", "running")
	asleep(never, 1000*time.Hour, "0s", "running")
	asleep(paused, 2*time.Hour, "1h0m0s", "paused")
	awake.Update(func(st *shimv1.StatusResponse, _ *shimv1.ActivityResponse) {
		st.StateSinceUnixMs = time.Now().Add(-2 * time.Hour).UnixMilli()
		st.Settings = []*shimv1.Setting{{Key: "delete-after", Value: "1h0m0s"}}
	})
	v := view(t, over, near, far, never, paused, awake)
	eventually(t, "all are seen", func() bool {
		n := 0
		for _, w := range v.List() {
			if w.Status() != nil {
				n++
			}
		}
		return n == 6
	})
	var log testlog.Buffer
	var mu sync.Mutex
	var ended []node.Key
	e := &Expirer{
		List: v.List, Record: filepath.Join(t.TempDir(), "data", "expired.jsonl"), Every: 5 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Ended: func(k node.Key, _ time.Time) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, k)
			over.Update(func(st *shimv1.StatusResponse, _ *shimv1.ActivityResponse) { st.State = "ended" })
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	eventually(t, "over is ended, near is told", func() bool {
		return len(over.Ends()) > 0 && strings.Contains(log.String(), "will be ended")
	})
	time.Sleep(50 * time.Millisecond) // some looks more
	stop()
	<-done
	if len(over.Ends()) != 1 || len(ended) != 1 || ended[0].ID != "over" {
		t.Errorf("ended %v, asked %d times", ended, len(over.Ends()))
	}
	for _, s := range []*shimtest.Shim{near, far, never, paused, awake} {
		if len(s.Ends()) != 0 {
			t.Errorf("%s was ended", s.ID)
		}
	}
	text := log.String()
	if strings.Count(text, "will be ended") != 2 || !strings.Contains(text, "id=near") || strings.Contains(text, "id=far") {
		t.Errorf("told:\n%s", text)
	}
	if got, err := os.ReadFile(e.Record); err != nil || !strings.Contains(string(got), `"id":"over"`) || strings.Count(string(got), "\n") != 1 {
		t.Errorf("recorded: %s, %v", got, err)
	}
}

// TestWokenMeanwhile: what was woken since the last look is refused by its shim, and goes on.
func TestWokenMeanwhile(t *testing.T) {
	s := shimtest.Start(t, "default", "web")
	asleep(s, 2*time.Hour, "1h0m0s", "running")
	v := view(t, s)
	eventually(t, "it is seen", func() bool { return len(v.List()) == 1 && v.List()[0].Status().GetState() == "asleep" })
	w := v.List()[0]
	var log testlog.Buffer
	e := &Expirer{
		List: v.List, Log: slog.New(slog.NewTextHandler(&log, nil)), Ended: func(node.Key, time.Time) { t.Error("it is told as ended") },
		warned: make(map[node.Key]warning),
	}
	at := At(w.Status())
	e.judge(t.Context(), w, at, time.Now()) // which tells of it
	e.judge(t.Context(), w, at, time.Now())
	if strings.Contains(log.String(), "was not ended") || !strings.Contains(log.String(), "in=1m0s") {
		t.Errorf("it had no time: %s", log.String())
	}
	s.Quietly(func(st *shimv1.StatusResponse) { st.StateSinceUnixMs = time.Now().UnixMilli() })
	e.judge(t.Context(), w, at, time.Now().Add(2*time.Minute))
	if !strings.Contains(log.String(), "was not ended") || len(s.Ends()) != 0 {
		t.Errorf("%s", log.String())
	}
}

// TestNotBeforeItsTime: one that was told of is not ended before its time is over, and then it is.
func TestNotBeforeItsTime(t *testing.T) {
	s := shimtest.Start(t, "default", "web")
	asleep(s, 50*time.Minute, "1h0m0s", "running")
	v := view(t, s)
	eventually(t, "it is seen", func() bool { return len(v.List()) == 1 && v.List()[0].Status().GetState() == "asleep" })
	w := v.List()[0]
	e := &Expirer{List: v.List, Log: slog.New(slog.DiscardHandler), warned: make(map[node.Key]warning)}
	at := At(w.Status())
	for _, c := range []struct {
		when time.Time
		ends int
	}{{time.Now(), 0}, {at.Add(-time.Second), 0}, {at, 1}} {
		if e.judge(t.Context(), w, at, c.when); len(s.Ends()) != c.ends {
			t.Errorf("%v before its time: %d ends", at.Sub(c.when), len(s.Ends()))
		}
	}
}

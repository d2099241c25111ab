package command

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// eventually runs events until there are so many lines.
func (h host) eventually(lines int, args ...string) []string {
	h.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, _ := h.run(exitOK, append([]string{"events"}, args...)...)
		got := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if len(got) >= lines && out != "" {
			return got
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%d events, want %d:\n%s", len(got), lines, out)
		}
	}
}

// What happens while hibernated is down is told by the next one, and what was told has its number for ever.
func TestEventsGoOnOverARestart(t *testing.T) {
	all := newHost(t, shimtest.Start(t, "default", "redis"))
	var first []string
	t.Run("first", func(t *testing.T) {
		h := all
		h.t = t
		h.daemon()
		h.run(exitOK, "hibernate", "redis")
		first = h.eventually(1)
		wantText(t, first[0], "1  ")
		wantText(t, first[0], "slept     default/redis")
	})
	if t.Failed() {
		return
	}
	all.run(exitUnreachable, "events")
	all.run(exitOK, "wake", "redis")
	all.daemon()
	second := all.eventually(2)
	if len(second) != 2 || second[0] != first[0] || !strings.Contains(second[1], "2  ") || !strings.Contains(second[1], "woken") {
		t.Errorf("after a restart there is\n%s\nbefore it was\n%s", strings.Join(second, "\n"), first[0])
	}
	lines := all.eventually(1, "--after", "1", "-o", "json")
	var e struct {
		Seq  string `json:"seq"`
		What string `json:"what"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &e); err != nil || len(lines) != 1 || e.Seq != "2" || e.What != "woken" {
		t.Errorf("after 1 there is %q: %v", lines, err)
	}
	if out, _ := all.run(exitOK, "events", "--after", "2"); out != "" {
		t.Errorf("after the last there is %q", out)
	}
	all.run(exitUsage, "events", "--since", "-1h")
}

// lineWriter gives away each line that is written.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

func TestEventsAreFollowed(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	h.daemon()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	lines, ended := make(lineWriter, 10), make(chan int, 1)
	go func() { ended <- Main(ctx, []string{"events", "-f", "--run-dir", h.runDir}, lines, lines) }()
	for i, verb := range []string{"hibernate", "wake", "hibernate"} {
		h.run(exitOK, verb, "redis")
		select {
		case line := <-lines:
			wantText(t, line, fmt.Sprintf("%d  ", i+1))
		case <-ctx.Done():
			t.Fatalf("event %d is not told", i+1)
		}
	}
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("ended with %d", code)
	}
}

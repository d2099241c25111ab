package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

type puller struct{ err error }

func (p puller) Pull(context.Context, api.Workload) (upload.Right, uint64, error) {
	return upload.Right{Epoch: 3}, 2, p.err
}

func host(free uint64) *Host {
	return &Host{
		Ability: func() eligible.Ability {
			return eligible.Ability{Architecture: "amd64", Features: []string{"sse", "avx"}}
		},
		Available: func() (uint64, error) { return free, nil }, Spare: 10, Pulls: puller{}, List: func() []*node.Workload { return nil }, Log: slog.New(slog.DiscardHandler),
	}
}

// A node takes what it can restore, as long as it has the memory for it, which is kept until the workload has come, or not in time.
func TestReserve(t *testing.T) {
	h := host(100)
	ask := func(name string, bytes uint64, wait time.Duration) peer.Ask {
		return peer.Ask{Namespace: "default", Identity: name, Bytes: bytes, Wait: wait, Needs: eligible.Ability{Architecture: "amd64", Features: []string{"avx"}}}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, err error, words string) {
		t.Helper()
		if !errors.Is(err, peer.ErrRefused) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(h.Reserve(t.Context(), ask("a", 60, time.Minute)))
	must(h.Reserve(t.Context(), ask("a", 60, time.Minute))) // asked again
	refused("more than there is beside it", h.Reserve(t.Context(), ask("b", 31, time.Minute)), "min-free-memory")
	must(h.Reserve(t.Context(), ask("b", 30, time.Nanosecond)))
	time.Sleep(time.Millisecond)
	if got := h.Reserved(); got != 60 {
		t.Errorf("%d are kept", got)
	}
	lacking := ask("c", 1, time.Minute)
	lacking.Needs.Features = []string{"amx"}
	refused("another CPU", h.Reserve(t.Context(), lacking), "amx")
	if p, err := h.Pull(t.Context(), ask("a", 0, time.Minute)); err != nil || p != (peer.Pulled{Epoch: 3, Sequence: 2}) {
		t.Errorf("%+v, %v", p, err)
	}
	if got := h.Reserved(); got != 0 {
		t.Errorf("%d are kept after it has come", got)
	}
	h.Pulls = puller{fmt.Errorf("no: %w", &peer.IdentityError{What: "somebody else", Do: "look"})}
	var identity *peer.IdentityError
	if _, err := h.Pull(t.Context(), ask("a", 0, time.Minute)); !errors.As(err, &identity) {
		t.Errorf("%v", err)
	}
}

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/api/rights"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

type claims func(pages.Workload, upload.Local) (upload.Right, error)

func (c claims) Claim(_ context.Context, w pages.Workload, l upload.Local) (upload.Right, error) {
	return c(w, l)
}

func (c claims) Unused(_ context.Context, w pages.Workload, grant string) error {
	_, err := c(w, upload.Local{Grant: "unused " + grant})
	return err
}

// A shim's request comes to the claims as it was made, and their answer, or why there is none, back to it.
func TestRights(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := ListenAPI(socket)
	if err != nil {
		t.Fatal(err)
	}
	var answer error
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- ServeAPI(ctx, l, API{}, Rights{Claims: claims(func(w pages.Workload, l upload.Local) (upload.Right, error) {
			if w != (pages.Workload{Namespace: "n", ID: "i", Identity: "pod/x"}) || l != (upload.Local{Sequence: 7, Epoch: 3}) {
				t.Errorf("%+v, %+v", w, l)
			}
			return upload.Right{Epoch: 4, Generations: []upload.Has{{Sequence: 7, Epoch: 3}}, Former: "b", Whole: true, Unconfirmed: true, Leased: true}, answer
		})})
	}()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	ask := func() *rightsv1.ClaimResponse {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := rightsv1.NewTTRPCRightsClient(c).Claim(ctx, &rightsv1.ClaimRequest{
			Workload: &rightsv1.Workload{Namespace: "n", Id: "i", Identity: "pod/x"}, LocalSequence: 7, LocalEpoch: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := ask()
	if r.GetClass() != "" || r.GetEpoch() != 4 || r.GetFormer() != "b" || !r.GetWhole() || !r.GetUnconfirmed() || !r.GetLeased() || len(r.GetGenerations()) != 1 ||
		r.GetGenerations()[0].GetSequence() != 7 || r.GetGenerations()[0].GetEpoch() != 3 {
		t.Errorf("%v", r)
	}
	for class, errs := range map[string][]error{
		rights.Owned:       {&upload.SilentError{OwnedError: durable.OwnedError{Owner: durable.Owner{Node: "b"}}}},
		rights.NoStore:     {upload.ErrNoFence},
		rights.Refused:     {durable.ErrRolledBack, durable.ErrWrongKey, durable.ErrDestroyed, store.ErrRefused, upload.ErrInvalid, fmt.Errorf("%w: %w", fence.ErrLapsed, fence.ErrRival)},
		rights.Unavailable: {fence.ErrLapsed, upload.ErrNotOpen, store.ErrUnavailable, durable.ErrContended, durable.ErrMoved, errors.New("anything"), context.DeadlineExceeded, fmt.Errorf("%w: %w", fence.ErrLapsed, durable.ErrNodeTaken)},
	} {
		for _, answer = range errs {
			if r := ask(); r.GetClass() != class || r.GetMessage() == "" || r.GetEpoch() != 0 {
				t.Errorf("%v: %v", answer, r)
			}
		}
	}
	if r, err := (Rights{}).Claim(t.Context(), &rightsv1.ClaimRequest{}); err != nil || r.GetClass() != rights.NoStore {
		t.Errorf("without a store: %v, %v", r, err)
	}
}

package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
)

// wakeAllWithin bounds wake --all without --timeout.
const wakeAllWithin = time.Hour

// wakeAll is one run of wake --all.
type wakeAll struct {
	*options
	parallel    int
	stale, wait bool

	mu sync.Mutex // guards what is printed in one piece
}

// woken is what became of a workload.
type woken struct {
	Namespace string  `json:"namespace"`
	ID        string  `json:"id"`
	Outcome   string  `json:"outcome"` // as a wake's; awake, ended, unreachable, failed
	Detail    string  `json:"detail,omitempty"`
	Ms        float64 `json:"ms,omitempty"`
	Failed    bool    `json:"failed,omitempty"`
}

func (a *wakeAll) run(cmd *cobra.Command, match string) error {
	f, err := readFleet(a.runDir)
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline(cmd.Context(), wakeAllWithin)
	defer cancel()
	var all []*woken
	var workers errgroup.Group
	workers.SetLimit(a.parallel)
	for _, r := range f.records {
		if !(freeze.Note{Match: match}).Matches(r.Namespace, r.ID) {
			continue
		}
		w := &woken{Namespace: r.Namespace, ID: r.ID}
		all = append(all, w)
		workers.Go(func() error {
			a.wake(ctx, r, w)
			a.tell(cmd.OutOrStdout(), w)
			return nil
		})
	}
	_ = workers.Wait()
	return a.sum(cmd.OutOrStdout(), all)
}

// wake wakes one, if it sleeps.
func (a *wakeAll) wake(ctx context.Context, r handover.Record, w *woken) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	found := ask(asking, r)
	switch state := found.GetStatus().GetState(); {
	case found.GetUnreachable() != "":
		w.Outcome, w.Detail, w.Failed = "unreachable", found.GetUnreachable(), true
		return
	case state == "awake" || state == "created" || state == "ended":
		w.Outcome = state
		return
	}
	resp, err := wake(ctx, r, &shimv1.WakeRequest{Reason: "request", StaleVolumes: a.stale}, a.wait)
	w.Outcome, w.Detail, w.Ms = resp.GetTransition().GetOutcome(), resp.GetTransition().GetDetail(), resp.GetTransition().GetTotalMs()
	if err != nil {
		w.Outcome, w.Detail, w.Failed = "failed", shimclient.Message(err), true
		return
	}
	w.Outcome = cmp.Or(w.Outcome, "awake")
	w.Failed = w.Outcome == "failed" || w.Outcome == "postponed"
}

// tell prints a line about one that was asked to wake.
func (a *wakeAll) tell(out io.Writer, w *woken) {
	if a.output == "json" || w.Outcome == "awake" && w.Ms == 0 || w.Outcome == "created" || w.Outcome == "ended" {
		return
	}
	text := w.Outcome
	if w.Ms != 0 {
		text += " in " + humanMillis(w.Ms)
	}
	if w.Detail != "" {
		text += ": " + w.Detail
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	fmt.Fprintf(out, "%s: %s\n", node.Key{Namespace: w.Namespace, ID: w.ID}, text)
}

// sum tells how it ended. The error is one of a refusal when not all that sleep have woken.
func (a *wakeAll) sum(out io.Writer, all []*woken) error {
	var woke, failed int
	for _, w := range all {
		switch {
		case w.Failed:
			failed++
		case w.Ms != 0:
			woke++
		}
	}
	if a.output == "json" {
		if err := encode(out, struct {
			Workloads []*woken `json:"workloads"`
		}{append([]*woken{}, all...)}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "%d woke, %d failed, %d were not asleep\n", woke, failed, len(all)-woke-failed)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d did not wake: %w", failed, len(all), errdefs.ErrFailedPrecondition)
	}
	return nil
}

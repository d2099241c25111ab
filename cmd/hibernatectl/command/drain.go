package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

const drainHelp = `Puts all workloads of this node to sleep, those with little memory first, and has them stay asleep: the node is cordoned
before (see hibernatectl cordon), until hibernatectl uncordon.

No container is stopped: a task that sleeps is running for its engine. What can't sleep runs on, and is named at the end with the reason, as
why-awake has it: exit code 4. What is in use is tried a few times. With --force everything sleeps that can be kept at all, as when it is
stopped with on-stop = hibernate: execs end, leases count for nothing, and clients in the middle of a request wait.

With --to what has an identity is moved to another node, as hibernatectl move does. What can't be moved sleeps here, and is named.

With --wait-uploaded it returns when the store has all that sleeps, so that other nodes may start it.`

// drainWithin bounds a drain without --timeout, uploads included.
const drainWithin = time.Hour

// byDrain is the reason that shims are given.
const byDrain = "drain"

func newDrain(o *options) *cobra.Command {
	d := &drain{options: o}
	fence, untilBoot := true, false
	cmd := &cobra.Command{
		Use: "drain", Short: "Put all workloads of the node to sleep", Long: drainHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.parallel < 1 {
				return usageError{fmt.Errorf("--parallel %d: want at least 1", d.parallel)}
			}
			if fence {
				if err := o.cordon(byDrain, untilBoot); err != nil {
					return err
				}
			}
			ctx, cancel := o.deadline(cmd.Context(), drainWithin)
			defer cancel()
			return d.run(ctx, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&fence, "cordon", true, "cordon the node first")
	cmd.Flags().BoolVar(&untilBoot, "until-boot", false, "cordon it only until the machine's next boot")
	cmd.Flags().BoolVar(&d.force, "force", false, "also what is in use, or has execs and leases")
	cmd.Flags().StringVar(&d.to, "to", "", "move what has an identity to this `node`")
	cmd.Flags().BoolVar(&d.uploaded, "wait-uploaded", false, "return when the store has all that sleeps")
	cmd.Flags().IntVar(&d.parallel, "parallel", max(2, runtime.NumCPU()), "how many are put to sleep at once, if there is room")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

// drain is one run of the command.
type drain struct {
	*options
	force, uploaded bool
	to              string // a node; empty: all sleep here
	parallel        int

	mu  sync.Mutex // guards out, and what is printed in one piece
	out io.Writer
}

// drained is what became of a workload.
type drained struct {
	Namespace string        `json:"namespace"`
	ID        string        `json:"id"`
	Outcome   string        `json:"outcome"` // slept, asleep, moved, blocked, ended, kept-awake, unreachable, not-moved, not-uploaded
	Detail    string        `json:"detail,omitempty"`
	Reasons   []drainReason `json:"reasons,omitempty"`
	Ms        float64       `json:"ms,omitempty"`
	Bytes     uint64        `json:"snapshot_bytes,omitempty"`

	memory   uint64 // that it takes, at first
	sequence uint64 // of what it sleeps with
	record   handover.Record
}

type drainReason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// done says whether nothing is left to be done by a person.
func (d *drained) done() bool {
	return !slices.Contains([]string{"kept-awake", "unreachable", "not-moved", "not-uploaded"}, d.Outcome)
}

func (d *drained) key() node.Key { return node.Key{Namespace: d.Namespace, ID: d.ID} }

func (d *drain) run(ctx context.Context, out io.Writer) error {
	d.out = out
	f, err := readFleet(d.runDir)
	if err != nil {
		return err
	}
	all := d.look(ctx, f)
	room, err := newRoom(d.options)
	if err != nil {
		return err
	}
	var workers errgroup.Group
	workers.SetLimit(d.parallel)
	for _, w := range all {
		if w.Outcome != "" {
			d.tell(w)
			continue
		}
		if err := room.enter(ctx, w.memory); err != nil {
			w.Outcome, w.Detail = "kept-awake", "there was no time left: "+err.Error()
			d.tell(w)
			continue
		}
		workers.Go(func() error {
			defer room.leave(w.memory)
			if d.to == "" {
				d.sleep(ctx, w)
			} else {
				d.leave(ctx, w)
			}
			d.tell(w)
			return nil
		})
	}
	_ = workers.Wait()
	if d.uploaded {
		d.awaitUploads(ctx, all)
	}
	return d.sum(all)
}

// look asks all shims, and puts those with little memory first, so that most are asleep should the time be short.
func (d *drain) look(ctx context.Context, f fleet) []*drained {
	all := make([]*drained, len(f.records))
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for i, r := range f.records {
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			w := ask(ctx, r)
			all[i] = &drained{Namespace: r.Namespace, ID: r.ID, memory: w.GetStatus().GetMemoryBytes(), record: r}
			switch state := w.GetStatus().GetState(); {
			case state == "asleep" && d.to != "":
				all[i].memory = 0
			case state == "asleep":
				all[i].Outcome, all[i].Bytes, all[i].sequence = "asleep", w.GetStatus().GetImageBytes(), w.GetStatus().GetSequence()
			case state == "blocked":
				all[i].Outcome, all[i].Detail = "blocked", w.GetStatus().GetLastWake().GetDetail()
			case state == "ended", state == "created":
				all[i].Outcome = "ended"
			}
			return nil
		})
	}
	_ = asking.Wait()
	slices.SortStableFunc(all, func(a, b *drained) int { return cmp.Compare(a.memory, b.memory) })
	return all
}

// What is in use is asked again so often, after a pause.
const (
	drainTries = 5
	drainAgain = 500 * time.Millisecond
)

// sleep has a workload put to sleep.
func (d *drain) sleep(ctx context.Context, w *drained) {
	client, err := dial(w.record)
	if err != nil {
		w.Outcome, w.Detail = "unreachable", shimclient.Message(err)
		return
	}
	defer client.Close()
	var resp *shimv1.HibernateResponse
	for try := 1; ; try++ {
		resp, err = client.Hibernate(ctx, &shimv1.HibernateRequest{Reason: byDrain, Manual: true, Urgent: d.force})
		if !errdefs.IsAborted(err) || try == drainTries {
			break
		}
		select {
		case <-time.After(drainAgain):
		case <-ctx.Done():
		}
	}
	status, serr := client.Status(context.WithoutCancel(ctx))
	if err == nil {
		w.Outcome, w.Ms, w.Bytes, w.sequence = "slept", resp.GetTransition().GetTotalMs(), resp.GetImageBytes(), status.GetSequence()
		return
	}
	w.Outcome, w.Detail = "kept-awake", strings.TrimPrefix(shimclient.Message(err), "hibernate: ")
	if errdefs.IsAborted(err) && !d.force {
		w.Detail += "; --force puts it to sleep all the same"
	}
	if errors.Is(err, shimclient.ErrUnreachable) {
		w.Outcome = "unreachable"
	}
	if serr != nil {
		return
	}
	if status.GetState() == "ended" {
		w.Outcome = "ended"
	}
	for _, r := range status.GetBlockers() {
		w.Reasons = append(w.Reasons, drainReason{r.GetCode(), r.GetDetail()})
	}
}

// tell prints a line about a workload that is done with.
func (d *drain) tell(w *drained) {
	if d.output == "json" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintln(d.out, w.key().String()+":", w.text())
}

func (w *drained) text() string {
	switch w.Outcome {
	case "slept":
		return fmt.Sprintf("asleep (%s, snapshot %s)", humanMillis(w.Ms), humanBytes(w.Bytes))
	case "asleep":
		return "asleep already"
	case "blocked":
		return "blocked, its snapshot is kept: " + w.Detail
	case "ended":
		return "does not run"
	case "moved":
		return "moved to " + w.Detail
	case "not-moved":
		return "asleep, and not moved: " + w.Detail
	case "not-uploaded":
		return "asleep, and not in the store: " + w.Detail
	}
	return strings.ReplaceAll(w.Outcome, "-", " ") + ": " + w.Detail
}

// sum prints the end, and is an error where somebody is awake still.
func (d *drain) sum(all []*drained) error {
	left := slices.DeleteFunc(slices.Clone(all), (*drained).done)
	if d.output == "json" {
		if err := encode(d.out, all); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(d.out, "%d workloads, %d done, %d not\n", len(all), len(all)-len(left), len(left))
		for _, w := range left {
			fmt.Fprintf(d.out, "  %s: %s\n", w.key(), w.text())
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d of %d workloads are not as they should be: %w", len(left), len(all), errdefs.ErrFailedPrecondition)
	}
	return nil
}

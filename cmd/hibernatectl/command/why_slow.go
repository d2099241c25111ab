package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const whySlowHelp = `Shows a workload's last wakes by stage, the newest first: hibernated keeps the last 16, since its own start, and the shim the last one.

Stages overlap, so they add up to more than a wake took. Below is the stage that took longest in the slowest of them, with what it means and
what to do.`

// stages are what the steps of a wake mean to a person.
var stages = map[string]string{
	"choose":  "the shim looks which snapshot is the newest: with a store it may have to ask hibernated. See the detail in hibernatectl inspect",
	"verify":  "the snapshot's checksums are compared: the disk reads slowly, or verify = before with a large snapshot",
	"boot":    "runsc starts a sandbox: the processors are busy (others wake at once: max-wakes), or the hypervisor gives memory slowly. standby = on has it done before",
	"inner":   "the link into the pod's network is put in place: the kernel's network lock is busy, as with hundreds of pods that start",
	"volumes": "the files of the host's mounts are looked at: many files, or a slow file system",
	"right":   "the right to run a workload with an identity is asked for: the store, or another node, answers slowly",
	"claim":   "the claim is written to the disk: an fsync takes long",
	"fetch":   "the snapshot's small files come from the store: the store, or the way to it, is slow",
	"mute":    "the gate is parked before the restore: the kernel's network lock is busy",
	"restore": "runsc restores the sandbox: it grows with memory where load = plain; else processors or the disk are busy. See Slow wakes in OPERATIONS.md",
	"hook":    "hook-after-wake runs: the program is the workload's own",
	"open":    "the gate opens: the kernel's network lock is busy",
	"store":   "the store is asked through hibernated: it, or the way to it, is slow",
	"settle":  "what an address from before the sleep needs is put in place: the sandbox or the kernel's network lock is busy",
	"close":   "a sandbox that could not be used is taken down, and the wake begins anew: the detail says why",
}

func newWhySlow(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "why-slow [NAMESPACE/]ID", Short: "Show a workload's last wakes by stage", Long: whySlowHelp, Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readFleet(o.runDir)
			if err != nil {
				return err
			}
			record, err := f.find(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := o.deadline(cmd.Context(), 5*time.Second)
			defer cancel()
			wakes, noDaemon, err := lastWakes(ctx, record, o.runDir)
			if err != nil {
				return fmt.Errorf("%s: %w", keyOf(record), err)
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), &daemonv1.WakesResponse{Wakes: wakes})
			}
			if noDaemon != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: hibernated doesn't answer, so this is the last wake alone:", noDaemon)
			}
			return printWakes(cmd.OutOrStdout(), keyOf(record).String(), wakes, o.now())
		},
	}
}

// lastWakes asks hibernated, and the shim where that doesn't answer; noDaemon says why.
func lastWakes(ctx context.Context, record handover.Record, runDir string) (all []*shimv1.Transition, noDaemon, err error) {
	req := &daemonv1.WakesRequest{Namespace: record.Namespace, Id: record.ID}
	resp, noDaemon := askDaemon(ctx, runDir, daemonClient.Wakes, req)
	if noDaemon == nil && len(resp.GetWakes()) > 0 {
		return resp.GetWakes(), nil, nil
	}
	client, err := dial(record)
	if err != nil {
		return nil, noDaemon, err
	}
	defer client.Close()
	status, err := client.Status(ctx)
	if err != nil {
		return nil, noDaemon, err
	}
	if status.GetLastWake().GetId() != "" {
		all = append(all, status.GetLastWake())
	}
	return all, noDaemon, nil
}

// printWakes writes a table with a column for each stage that any of them has.
func printWakes(out io.Writer, name string, wakes []*shimv1.Transition, now time.Time) error {
	if len(wakes) == 0 {
		_, err := fmt.Fprintf(out, "%s has not been woken yet\n", name)
		return err
	}
	columns := stepNames(wakes)
	t := newTable(out)
	head := []string{"AGO", "REASON", "OUTCOME", "TOTAL"}
	for _, c := range columns {
		head = append(head, strings.ToUpper(c))
	}
	t.row(head...)
	for _, w := range wakes {
		row := []string{ago(now, w.GetStartedUnixMs()), orNone(w.GetReason()), w.GetOutcome(), humanMillis(w.GetTotalMs())}
		for _, c := range columns {
			row = append(row, stepTime(w, c))
		}
		t.row(row...)
	}
	slowest := slices.MaxFunc(wakes, func(a, b *shimv1.Transition) int { return cmp.Compare(a.GetTotalMs(), b.GetTotalMs()) })
	return errors.Join(t.flush(), printSlowest(out, slowest))
}

// printSlowest says what took longest in a wake.
func printSlowest(out io.Writer, w *shimv1.Transition) error {
	if len(w.GetSteps()) == 0 {
		return nil
	}
	longest := slices.MaxFunc(w.GetSteps(), func(a, b *shimv1.Step) int { return cmp.Compare(a.GetMs(), b.GetMs()) })
	_, err := fmt.Fprintf(out, "\nThe slowest took %s, of which %s %s", humanMillis(w.GetTotalMs()), longest.GetName(), humanMillis(longest.GetMs()))
	if means := stages[longest.GetName()]; means != "" {
		fmt.Fprintf(out, ": %s", means)
	}
	fmt.Fprintln(out, ".")
	if w.GetDetail() != "" {
		fmt.Fprintln(out, "Its detail:", w.GetDetail())
	}
	return err
}

// stepNames are those of the wakes' steps, in the order in which they begin.
func stepNames(wakes []*shimv1.Transition) (names []string) {
	for _, w := range wakes {
		steps := slices.SortedStableFunc(slices.Values(w.GetSteps()), func(a, b *shimv1.Step) int { return cmp.Compare(a.GetStartMs(), b.GetStartMs()) })
		for _, s := range steps {
			if !slices.Contains(names, s.GetName()) {
				names = append(names, s.GetName())
			}
		}
	}
	return names
}

// stepTime is what a wake's steps of a name took together.
func stepTime(w *shimv1.Transition, name string) string {
	var ms float64
	found := false
	for _, s := range w.GetSteps() {
		if s.GetName() == name {
			ms, found = ms+s.GetMs(), true
		}
	}
	if !found {
		return none
	}
	return humanMillis(ms)
}

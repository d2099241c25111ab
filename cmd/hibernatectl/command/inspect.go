package command

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

func newInspect(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "inspect [NAMESPACE/]ID", Short: "Show all that is known of a workload", Args: workloadArg,
		Long: "Shows a workload's state, its settings with where each comes from, and its last sleep and wake by stage.",
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
			one := fleet{records: f.records[:0:0]}
			one.records = append(one.records, record)
			all, _ := one.askAll(ctx, o.runDir)
			addFrozen(all, o.freezes())
			if all[0].GetUnreachable() != "" {
				return fmt.Errorf("%s: %w: %s", keyOf(record), shimclient.ErrUnreachable, all[0].GetUnreachable())
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), all[0])
			}
			return printInspect(cmd.OutOrStdout(), all[0], o.now())
		},
	}
}

func printInspect(out io.Writer, w *daemonv1.Workload, now time.Time) error {
	return errors.Join(
		printFacts(out, w, now),
		printBlockers(out, w.GetStatus().GetBlockers()),
		printContainers(out, w.GetStatus().GetContainers()),
		printTransition(out, "Last hibernation", w.GetStatus().GetLastHibernate(), now),
		printTransition(out, "Last wake", w.GetStatus().GetLastWake(), now),
		printMended(out, w.GetStatus().GetMended(), now),
		printSettings(out, w.GetStatus().GetSettings()),
	)
}

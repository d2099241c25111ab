package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const hibernateHelp = `Puts a workload to sleep now, whatever its mode and its idle clock say.

What makes sleeping impossible is not overridden (a live exec, a terminal, a lease, no room on the disk, …): exit code 4,
and the reason. A connection that comes meanwhile wins: also 4.`

func newHibernate(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "hibernate [NAMESPACE/]ID", Short: "Put a workload to sleep", Long: hibernateHelp, Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readFleet(o.runDir)
			if err != nil {
				return err
			}
			record, err := f.find(args[0])
			if err != nil {
				return err
			}
			client, err := dial(record)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := o.deadline(cmd.Context(), 10*time.Minute)
			defer cancel()
			resp, err := client.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "request", Manual: true})
			if err != nil {
				return fmt.Errorf("%s: %w", keyOf(record), err)
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is asleep (%s, snapshot %s)\n", keyOf(record),
				humanMillis(resp.GetTransition().GetTotalMs()), humanBytes(resp.GetImageBytes()))
			return err
		},
	}
}

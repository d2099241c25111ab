package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

const leaseHelp = `Shows and changes the leases of a workload.

A lease has a name and keeps its workload awake until it expires or is released; any number may be held at once. It doesn't
wake: see hibernatectl wake. Leases end with the container's shim.`

const (
	longestLease = 24 * time.Hour // a shim grants no longer one
	leaseTimeout = 5 * time.Second
)

func newLease(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "lease", Short: "Keep a workload awake for a time", Long: leaseHelp, Args: subcommand}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newLeaseTake(o), newLeaseList(o), newLeaseRelease(o))
	return cmd
}

// subcommand refuses what is none.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return usageError{fmt.Errorf("%s %q: want one of %s", cmd.Name(), args[0], strings.Join(names, ", "))}
}

func newLeaseTake(o *options) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "take [NAMESPACE/]ID NAME --for DURATION", Short: "Take or renew a lease", Args: leaseArgs,
		Long: "Keeps a workload awake for a time from now on, under a name. Taken again, it lasts from then on, longer or shorter.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if ttl <= 0 || ttl > longestLease {
				return usageError{fmt.Errorf("--for %v: want a time up to %v, such as 30m; renew it to hold it longer", ttl, longestLease)}
			}
			return o.withShim(cmd, args[0], leaseTimeout, func(ctx context.Context, client *shimclient.Client) error {
				resp, err := client.Lease(ctx, &shimv1.LeaseRequest{Name: args[1], TtlMs: max(ttl.Milliseconds(), 1)})
				if err != nil {
					return err
				}
				return o.printLeases(cmd.OutOrStdout(), resp)
			})
		},
	}
	cmd.Flags().DurationVar(&ttl, "for", 0, "how long, up to 24h")
	return cmd
}

func newLeaseList(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls [NAMESPACE/]ID", Aliases: []string{"list"}, Short: "List a workload's leases", Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withShim(cmd, args[0], leaseTimeout, func(ctx context.Context, client *shimclient.Client) error {
				activity, err := client.Activity(ctx)
				if err != nil {
					return err
				}
				return o.printLeases(cmd.OutOrStdout(), &shimv1.LeaseResponse{Leases: activity.GetLeases()})
			})
		},
	}
}

func newLeaseRelease(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "release [NAMESPACE/]ID NAME", Short: "End a lease", Args: leaseArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withShim(cmd, args[0], leaseTimeout, func(ctx context.Context, client *shimclient.Client) error {
				activity, err := client.Activity(ctx)
				if err != nil {
					return err
				}
				if err := known(activity.GetLeases(), args[1]); err != nil {
					return err
				}
				resp, err := client.Lease(ctx, &shimv1.LeaseRequest{Name: args[1]})
				if err != nil {
					return err
				}
				return o.printLeases(cmd.OutOrStdout(), resp)
			})
		},
	}
}

// known is an error that names the leases there are when that one isn't.
func known(leases []*shimv1.LeaseInfo, name string) error {
	var names []string
	for _, l := range leases {
		names = append(names, l.GetName())
	}
	if slices.Contains(names, name) {
		return nil
	}
	there := "there is none; it may have expired"
	if len(names) > 0 {
		there = "there is " + strings.Join(names, ", ")
	}
	return fmt.Errorf("no lease %q; %s: %w", name, there, errdefs.ErrNotFound)
}

// leaseArgs accepts a workload and a name.
func leaseArgs(_ *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return usageError{fmt.Errorf("a workload and the lease's name are wanted, as in: web backup; got %d arguments", len(args))}
	}
	return nil
}

// printLeases writes a workload's leases.
func (o *options) printLeases(out io.Writer, resp *shimv1.LeaseResponse) error {
	if o.output == "json" {
		return printJSON(out, resp)
	}
	t := newTable(out)
	t.row("NAME", "ENDS IN", "ENDS AT")
	for _, l := range resp.GetLeases() {
		ends := time.UnixMilli(l.GetExpiresUnixMs())
		t.row(l.GetName(), humanDuration(max(ends.Sub(o.now()), 0)), ends.UTC().Format(time.RFC3339))
	}
	return t.flush()
}

// Package command is hibernatectl. It finds the shims by their records and asks each over its own socket, so all but the
// idle clocks works without a daemon. Those come from hibernated, when it runs.
package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

// Main runs hibernatectl with the given arguments and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(time.Now)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "hibernatectl:", message(err))
	return exitCode(err)
}

// options are the flags that every command has.
type options struct {
	config  string
	runDir  string
	dataDir string
	output  string
	timeout time.Duration

	progress bool // of snapshots
	now      func() time.Time
}

const rootHelp = `Shows and steers the hibernating workloads of this node.

A workload is named ID, or NAMESPACE/ID where the ID alone is ambiguous. The beginning of an ID is enough when it is the
only one that begins so.

Exit codes: 0 done, 1 error, 2 wrong usage, 3 no such workload, 4 refused (the message says why),
5 not reachable or timed out, 6 doctor has found problems.`

func newRoot(now func() time.Time) *cobra.Command {
	o := &options{now: now}
	root := &cobra.Command{
		Use: "hibernatectl", Short: "Shows and steers hibernating workloads", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.settle(cmd) },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.config, "config", config.DefaultFile, "configuration file, for its run-dir")
	flags.StringVar(&o.runDir, "run-dir", "", "directory of sockets and records (default: as configured)")
	flags.StringVarP(&o.output, "output", "o", "table", "table or json")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long to wait for answers (default: fits the command)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newList(o), newHibernate(o), newWake(o), newInspect(o), newWhyAwake(o), newFork(o), newMove(o), newPool(o),
		newDrain(o), newCordon(o), newUncordon(o), newExportRootfs(o), newLease(o), newOrphans(o), newSnapshots(o), newNode(o), newVersion(o),
		newFreeze(o), newUnfreeze(o), newWhySlow(o), newDoctor(o), newEvents(o))
	o.completeWorkloads(root)
	return root
}

// settle checks the common flags and fills in what they left open.
func (o *options) settle(cmd *cobra.Command) error {
	if o.output != "table" && o.output != "json" {
		return usageError{fmt.Errorf("-o %s: neither table nor json", o.output)}
	}
	if o.timeout < 0 {
		return usageError{fmt.Errorf("--timeout %s: negative", o.timeout)}
	}
	if o.runDir != "" {
		return nil
	}
	cfg, err := config.Load(config.Input{File: o.config})
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	o.runDir = cfg.RunDir
	return nil
}

// deadline bounds ctx by --timeout, or by the command's own.
func (o *options) deadline(ctx context.Context, fits time.Duration) (context.Context, context.CancelFunc) {
	if o.timeout > 0 {
		fits = o.timeout
	}
	return context.WithTimeout(ctx, fits)
}

// workloadArg accepts exactly one argument, the workload.
func workloadArg(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usageError{fmt.Errorf("one workload is wanted, as ID or NAMESPACE/ID; got %d arguments", len(args))}
	}
	return nil
}

// noArgs accepts none.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) != 0 {
		return usageError{fmt.Errorf("no arguments are wanted; got %q", args)}
	}
	return nil
}

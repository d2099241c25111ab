package command

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

const forkHelp = `Makes workloads that go on from where this one is now, each by itself, and prints their identities.

They sleep, and take no memory, until a container is started with the identity of one of them and the specification of the forked
container. On the node's disk they share its files. A workload that sleeps is not woken; one that is awake is frozen for a moment. All
of them are made, or none. Connections stay the forked one's: in the others they are closed, unheard outside.`

// mostForks is how many a shim makes at once.
const mostForks = 1000

func newFork(o *options) *cobra.Command {
	var count int
	var start bool
	r := forkRun{options: o}
	cmd := &cobra.Command{
		Use: "fork [NAMESPACE/]ID [IDENTITY…]", Short: "Make workloads that go on from where one is now", Long: forkHelp + forkRunHelp, Args: forkArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := forkNames(args, count)
			if err != nil {
				return usageError{err}
			}
			if !start && (len(r.netns) > 0 || r.socket != "") {
				return usageError{errors.New("--netns and --containerd-address are for containers, and need --run")}
			}
			return o.withRecord(cmd, args[0], 10*time.Minute, func(ctx context.Context, record handover.Record, client *shimclient.Client) (err error) {
				fork := func() (*shimv1.ForkResponse, error) { return client.Fork(ctx, &shimv1.ForkRequest{Identities: names}) }
				var f *shimv1.ForkResponse
				var ran []ranJSON
				if start {
					ran, f, err = r.run(ctx, record, names, fork)
				} else {
					f, err = fork()
				}
				switch out := cmd.OutOrStdout(); {
				case err != nil:
					return err
				case o.output == "json":
					return encode(out, forkedJSON{f.GetNamespace(), f.GetPodNamespace(), names, f.GetSequence(), f.GetBytes(), f.GetFrozenMs(), ran})
				case start:
					return printRan(out, ran)
				default:
					return printForked(out, args[0], names, f)
				}
			})
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 0, "make so many, with names made up from the workload's")
	cmd.Flags().BoolVar(&start, "run", false, "make and start a container for each")
	cmd.Flags().StringArrayVar(&r.netns, "netns", nil, "the `path` of a child's network namespace, once for each in their order")
	cmd.Flags().StringVar(&r.socket, "containerd-address", "", "containerd's `socket` (default: that of the forked container)")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

func forkArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return workloadArg(cmd, args)
	}
	return workloadArg(cmd, args[:1])
}

type forkedJSON struct {
	Namespace    string   `json:"namespace"`
	PodNamespace string   `json:"pod_namespace"`
	Identities   []string `json:"identities"`
	Sequence     uint64   `json:"sequence"`
	Bytes        uint64   `json:"bytes"`
	FrozenMs     int64    `json:"frozen_ms"`

	Containers []ranJSON `json:"containers,omitempty"`
}

// forkNames are those that were given, or count that are made up, so that no two forks meet.
func forkNames(args []string, count int) ([]string, error) {
	names := args[1:]
	switch {
	case len(names) > 0 && count > 0:
		return nil, errors.New("-n makes up names, and some are given: want one or the other")
	case len(names) > 0:
		return names, nil
	case count == 0:
		return nil, errors.New("how many? Give -n, or their identities")
	case count < 0 || count > mostForks:
		return nil, fmt.Errorf("-n %d: want a number from 1 to %d", count, mostForks)
	}
	_, id, found := strings.Cut(args[0], "/")
	if !found {
		id = args[0]
	}
	var batch [4]byte
	_, _ = rand.Read(batch[:]) // never fails
	for i := range count {
		names = append(names, fmt.Sprintf("%.80s-%s-%d", id, hex.EncodeToString(batch[:]), i+1))
	}
	return names, nil
}

// printForked prints the names, a line each, for scripts, and then, to a person, what a container needs to be one of them.
func printForked(out io.Writer, workload string, names []string, f *shimv1.ForkResponse) error {
	for _, name := range names {
		fmt.Fprintln(out, name)
	}
	if !isTerminal(out) {
		return nil
	}
	what := fmt.Sprintf("copies of snapshot %d", f.GetSequence())
	if f.GetSequence() == 0 {
		what = fmt.Sprintf("%s was frozen for %d ms", workload, f.GetFrozenMs())
	}
	_, err := fmt.Fprintf(out, "\n%d asleep (%s), sharing %s. To go on as one of them, start a container\n"+
		"  with the image, command, environment and mounts of %s,\n"+
		"  in containerd's namespace %s%s, with the runtime io.containerd.hibernate.v1 and the annotation\n"+
		"  io.containerd.hibernate/identity=%s\n", len(names), what, humanBytes(f.GetBytes()), workload, f.GetNamespace(), podScope(f.GetPodNamespace()), names[0])
	return err
}

func podScope(namespace string) string {
	if namespace == "" {
		return ""
	}
	return ", in a pod of namespace " + namespace
}

package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

const moveHelp = `Moves a workload with an identity to another node, and prints each step with the time that it took.

The other node says first whether it can restore the workload, and keeps memory for it; then the workload is put to sleep here; then the
other node has it from here, and the right to run it. A container of its identity that waits there, asleep or about to start, goes on
with it; otherwise it sleeps there until one is started. The container here stays, asleep, until you delete it.

Whatever fails before the other node has it, the workload goes on here: exit code 4, and why. Both nodes need peer-address.`

// moveTime bounds a move where nobody says otherwise.
const moveTime = 2 * time.Minute

func newMove(o *options) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "move [NAMESPACE/]ID --to NODE", Short: "Move a workload to another node", Long: moveHelp, Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usageError{fmt.Errorf("where to? Give --to with the other node's node-name")}
			}
			return o.move(cmd, args[0], to)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the other node's name (node-name)")
	return cmd
}

func (o *options) move(cmd *cobra.Command, name, to string) error {
	f, err := readFleet(o.runDir)
	if err != nil {
		return err
	}
	record, err := f.find(name)
	if err != nil {
		return err
	}
	within := moveTime
	if o.timeout > 0 {
		within = o.timeout
	}
	// The daemon keeps to the time, and says afterwards where the workload is: its answer is waited for a little longer.
	ctx, cancel := context.WithTimeout(cmd.Context(), within+moveSlack)
	defer cancel()
	out := cmd.OutOrStdout()
	var steps []*daemonv1.MoveResponse
	err = stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.MoveResponse, error)
	}, error) {
		return c.Move(ctx, &daemonv1.MoveRequest{Namespace: record.Namespace, Id: record.ID, Node: to, TimeoutMs: within.Milliseconds()})
	}, func(m *daemonv1.MoveResponse) (bool, error) {
		steps = append(steps, m)
		if o.output == "json" {
			return m.GetMoved() != nil, nil
		}
		return m.GetMoved() != nil, printMove(out, keyOf(record).String(), m)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(record), err)
	}
	if o.output == "json" {
		return printAll(out, "steps", steps)
	}
	return nil
}

// moveSlack is what a move that failed needs to be undone.
const moveSlack = 90 * time.Second

// printMove prints a step, or the result.
func printMove(out io.Writer, workload string, m *daemonv1.MoveResponse) (err error) {
	d := m.GetMoved()
	switch {
	case d == nil:
		_, err = fmt.Fprintf(out, "%-10s %8s  %s\n", m.GetStep(), humanMillis(float64(m.GetTookMs())), m.GetDetail())
	case d.GetContainer() != "":
		_, err = fmt.Fprintf(out, "%s goes on on %s, in container %s\n", workload, d.GetNode(), d.GetContainer())
	case d.GetDetail() != "":
		_, err = fmt.Fprintf(out, "%s is on %s, asleep: %s\n", workload, d.GetNode(), d.GetDetail())
	default:
		_, err = fmt.Fprintf(out, "%s is on %s, asleep, until a container of its identity is started there\n", workload, d.GetNode())
	}
	return err
}

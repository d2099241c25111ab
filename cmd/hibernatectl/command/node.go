package command

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/facts"
)

const nodeHelp = `Shows what this node is, as hibernated tells the other nodes and schedulers: what a snapshot needs to be restored here.

Below are the runscs that are there, and those that something on the node needs: a snapshot is restored by the very runsc that made it. One that
is "missing" belongs where its line says, with the checkpointgofer of the same build beside it. One that nothing needs may be removed, unless
snapshots of other nodes, or in the store alone, are to be restored here that it has made (hibernatectl snapshots show tells).`

func newNode(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "node", Short: "Show what this node can restore, and which runscs its snapshots need", Long: nodeHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := o.deadline(cmd.Context(), daemonTimeout)
			defer cancel()
			resp, err := askDaemon(ctx, o.runDir, daemonClient.Node, &daemonv1.NodeRequest{})
			if err != nil {
				return err
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printNode(cmd.OutOrStdout(), resp)
		},
	}
}

func printNode(out io.Writer, n *daemonv1.NodeResponse) error {
	t := newTable(out)
	t.row("node", n.GetName())
	for _, name := range factNames(n.GetFacts()) {
		text := n.GetFacts()[name]
		if size, err := strconv.ParseUint(text, 10, 64); err == nil && (name == facts.Memory || name == facts.Available) {
			text = humanBytes(size)
		}
		t.row(name, text)
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t = newTable(out)
	t.row("RUNSC", "SHA256", "WHERE", "NEEDED BY")
	for _, r := range n.GetRunscs() {
		where := r.GetPath()
		switch {
		case where == "":
			where = "missing: " + n.GetRunscDir() + "/" + r.GetSha256() + "/runsc"
		case r.GetConfigured():
			where += " (new workloads)"
		}
		t.row(r.GetVersion(), shortDigest(r.GetSha256()), where, neededBy(r.GetNeededBy()))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if n.GetError() != "" {
		fmt.Fprintln(out, "\nNot all is known: "+n.GetError())
	}
	return nil
}

// factNames leaves out what has a table of its own.
func factNames(all map[string]string) (names []string) {
	for name := range all {
		if name != facts.Runscs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func shortDigest(s string) string { return s[:min(12, len(s))] }

// neededBy names a few.
func neededBy(all []string) string {
	const few = 3
	if len(all) == 0 {
		return none
	}
	text := strings.Join(all[:min(few, len(all))], ", ")
	if more := len(all) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

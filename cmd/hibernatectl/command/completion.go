package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// completeWorkloads has the shell complete the workloads' names, for each command that wants one.
func (o *options) completeWorkloads(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		o.completeWorkloads(cmd)
		if strings.Contains(cmd.Use, "[NAMESPACE/]ID") && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = o.workloads
		}
	}
}

// workloads are the names that begin with what was typed: the IDs that are there once, and all with their namespace. The shell asks only for
// records, no shim is asked.
func (o *options) workloads(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || o.settle(cmd) != nil { // completions are made without what commands do first
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	f, err := readFleet(o.runDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	times := make(map[string]int)
	keys := make([]node.Key, 0, len(f.records))
	for _, r := range f.records {
		keys = append(keys, keyOf(r))
		times[r.ID]++
	}
	var names []cobra.Completion
	for _, key := range keys {
		if times[key.ID] == 1 && strings.HasPrefix(key.ID, typed) {
			names = append(names, key.ID)
		}
		if strings.HasPrefix(key.String(), typed) && (typed != "" || times[key.ID] > 1) {
			names = append(names, key.String())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/daemon/leftover"
	"github.com/hibernate-runtime/hibernate/internal/config"
)

const orphansHelp = `Lists the snapshots that no shim looks after: what is left when a shim has died.

CONTAINER tells what containerd says of the container. "exists": started again, it goes on from the snapshot. "gone": nothing
will use it any more; hibernated removes it after collect-after. "unknown": containerd can't be asked, or the snapshot has an identity, which any
container may be given; nothing is removed. Snapshots that were set aside (QUARANTINE) are removed by nobody but a person.`

const orphansRemoveHelp = `Removes a snapshot that no shim looks after, with all that was set aside beside it. The state in it is lost.

One whose container exists, or may exist, is refused without --force. One that a shim uses is refused in any case.`

func newOrphans(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "orphans", Short: "Show and remove snapshots that no shim looks after", Long: orphansHelp, Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.listOrphans(cmd) },
	}
	cmd.PersistentFlags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	cmd.AddCommand(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List them", Long: orphansHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.listOrphans(cmd) },
	}, newOrphansRemove(o))
	return cmd
}

func newOrphansRemove(o *options) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAMESPACE/ID | NAMESPACE/identity=NAME | DIRECTORY", Short: "Remove one", Long: orphansRemoveHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usageError{errors.New("one is wanted, by NAMESPACE/ID, or by its directory where that is not told")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			left, err := o.orphans()
			if err != nil {
				return err
			}
			one, err := pick(left, args[0])
			if err != nil {
				return err
			}
			ctx, cancel := o.deadline(cmd.Context(), time.Minute)
			defer cancel()
			if err := leftover.Remove(ctx, one, force); err != nil {
				return fmt.Errorf("%s: %w%s", one.Name(), err, forceHint(err))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is removed (%s)\n", one.Name(), humanBytes(one.Bytes))
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when its container exists, or nobody knows")
	return cmd
}

func forceHint(err error) string {
	if errors.Is(err, leftover.ErrExists) || errors.Is(err, leftover.ErrUnknown) {
		return " (--force removes it all the same)"
	}
	return ""
}

// pick finds the one that a person means; no beginnings of names: what is removed is lost.
func pick(left []leftover.Leftover, name string) (leftover.Leftover, error) {
	i := slices.IndexFunc(left, func(l leftover.Leftover) bool { return l.Name() == name || l.Dir == name })
	if i >= 0 {
		return left[i], nil
	}
	var names []string
	for _, l := range left {
		names = append(names, l.Name())
	}
	if len(names) == 0 {
		return leftover.Leftover{}, &missingError{fmt.Sprintf("no orphan %q: there is none on this node", name)}
	}
	return leftover.Leftover{}, &missingError{fmt.Sprintf("no orphan %q; there is %s", name, strings.Join(names, ", "))}
}

// missingError is about a name that fits nothing.
type missingError struct{ text string }

func (e *missingError) Error() string { return e.text }

func (o *options) orphans() ([]leftover.Leftover, error) {
	dir := o.dataDir
	if dir == "" {
		cfg, err := config.Load(config.Input{File: o.config})
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		dir = cfg.DataDir
	}
	return leftover.Find(dir, o.runDir)
}

// orphan is what -o json prints of each.
type orphan struct {
	Namespace   string `json:"namespace,omitempty"`
	ID          string `json:"id,omitempty"`
	Dir         string `json:"dir"`
	State       string `json:"state,omitempty"`
	Since       string `json:"since,omitempty"` // of the state
	Bytes       uint64 `json:"bytes"`
	Quarantined int    `json:"quarantined"`
	Container   string `json:"container"` // exists, gone, unknown
	Reason      string `json:"reason,omitempty"`
}

func (o *options) listOrphans(cmd *cobra.Command) error {
	left, err := o.orphans()
	if err != nil {
		return err
	}
	ctx, cancel := o.deadline(cmd.Context(), 30*time.Second)
	defer cancel()
	all := make([]orphan, 0, len(left))
	for _, l := range left {
		all = append(all, describe(ctx, l))
	}
	if o.output == "json" {
		return encode(cmd.OutOrStdout(), map[string][]orphan{"orphans": all})
	}
	return o.printOrphans(cmd.OutOrStdout(), left, all)
}

func describe(ctx context.Context, l leftover.Leftover) orphan {
	fate, err := leftover.Ask(ctx, l)
	one := orphan{
		Namespace: l.Namespace, ID: l.ID, Dir: l.Dir, State: string(l.Head.State), Bytes: l.Bytes, Quarantined: l.Quarantined,
		Container: string(fate),
	}
	if !l.Head.Time.IsZero() {
		one.Since = l.Head.Time.UTC().Format(time.RFC3339)
	}
	if err != nil {
		one.Reason = err.Error()
	}
	return one
}

func (o *options) printOrphans(out io.Writer, left []leftover.Leftover, all []orphan) error {
	t := newTable(out)
	t.row("NAME", "STATE", "SIZE", "QUARANTINE", "CONTAINER")
	for i, l := range left {
		state := orNone(all[i].State)
		if !l.Head.Time.IsZero() {
			state += " " + ago(o.now(), l.Head.Time.UnixMilli())
		}
		container := all[i].Container
		if all[i].Reason != "" {
			container += ": " + all[i].Reason
		}
		t.row(l.Name(), state, humanBytes(l.Bytes), fmt.Sprint(l.Quarantined), container)
	}
	return t.flush()
}

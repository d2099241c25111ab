package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

const snapshotsHelp = `Shows, checks and manages the snapshots in the store, where hibernated keeps copies that outlive the node (key store).

They are asked of hibernated, which has the key. A workload of this node is named ID or NAMESPACE/ID, any other by its NAME in
the store; one of its snapshots NAME@SEQUENCE. What takes long tells how far it is on a terminal, and with --progress elsewhere.`

const snapshotsListHelp = `Lists the snapshots in the store, the newest of each workload first.

WORKLOAD is told of those of this node. IMAGE is the size of a snapshot's files, SENT what was sent for it. OWNER is the node that
may run the workload. NOTE tells what is unusual: a container that is gone from this node, whose snapshots are kept; one that can't be read.`

const verifyHelp = `Reads a snapshot back from the store, the newest one without @SEQUENCE, and compares every byte with what was written.

Nothing is written to the node, and nothing restored. It takes as long as a restore would.`

const collectHelp = `Deletes what no snapshot in the store needs: generations beyond keep-snapshots, and objects that nothing has named for an hour.

hibernated does so by itself. With --dry-run nothing is deleted, and what would be is listed. Of other nodes' workloads generations
are left alone: how many they keep is theirs to say.`

func newSnapshots(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshots", Short: "Show, check and manage the snapshots in the store", Long: snapshotsHelp, Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.listSnapshots(cmd, "") },
	}
	cmd.PersistentFlags().BoolVar(&o.progress, "progress", false, "tell how far it is, also where standard error is no terminal")
	cmd.AddCommand(newSnapshotsList(o), newSnapshotsVerify(o), newSnapshotsCollect(o))
	cmd.AddCommand(newSnapshotsManage(o)...)
	return cmd
}

func newSnapshotsList(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls [NAME]", Aliases: []string{"list"}, Short: "List them", Long: snapshotsListHelp, Args: atMost(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.listSnapshots(cmd, strings.Join(args, "")) },
	}
}

func newSnapshotsVerify(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "verify NAME[@SEQUENCE]", Short: "Read one back and compare it", Long: verifyHelp, Args: atMost(2, "NAME and SEQUENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &daemonv1.VerifySnapshotRequest{}
			if len(args) == 0 || args[0] == "" {
				return usageError{errors.New("the NAME of a workload is wanted")}
			}
			var err error
			if req.Name, req.Sequence, err = parseSnapshot(args[0]); err != nil {
				return err
			}
			if len(args) == 2 {
				n, err := strconv.ParseUint(args[1], 10, 64)
				if err != nil || n == 0 {
					return usageError{fmt.Errorf("SEQUENCE %q is no number above 0", args[1])}
				}
				req.Sequence = n
			}
			return o.verifySnapshot(cmd, req)
		},
	}
}

func newSnapshotsCollect(o *options) *cobra.Command {
	req := &daemonv1.CollectSnapshotsRequest{}
	cmd := &cobra.Command{
		Use: "gc [NAME]", Short: "Delete what no snapshot needs", Long: collectHelp, Args: atMost(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = strings.Join(args, "")
			return o.collectSnapshots(cmd, req)
		},
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "delete nothing, and list what would be")
	return cmd
}

// atMost accepts no more than so many arguments.
func atMost(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("%s at most; got %q", what, args)}
		}
		return nil
	}
}

// stream calls the daemon and takes each message, until the one that ends: without it the answer was cut.
func stream[M any](ctx context.Context, o *options, begin func(daemonv1.TTRPCDaemonClient) (interface{ Recv() (M, error) }, error), take func(M) (ended bool, err error)) error {
	client, err := dialDaemon(ctx, o.runDir)
	if err != nil {
		return err
	}
	defer client.Close()
	messages, err := begin(daemonv1.NewTTRPCDaemonClient(client))
	for err == nil {
		var m M
		if m, err = messages.Recv(); err == nil {
			var ended bool
			if ended, err = take(m); ended || err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("ask hibernated: %w", ctx.Err())
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("ask hibernated: %w", errCut)
	}
	return fmt.Errorf("ask hibernated: %w", errgrpc.ToNative(err))
}

var errCut = errors.New("its answer ends too soon: does it still run?")

func (o *options) listSnapshots(cmd *cobra.Command, name string) error {
	ctx, cancel := o.deadline(cmd.Context(), 2*time.Minute)
	defer cancel()
	var all []*daemonv1.Lineage
	err := stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.Lineage, error)
	}, error) {
		return c.Snapshots(ctx, &daemonv1.SnapshotsRequest{Name: name})
	}, func(m *daemonv1.Lineage) (bool, error) {
		if !m.GetEnd() {
			all = append(all, m)
		}
		return m.GetEnd(), nil
	})
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printAll(cmd.OutOrStdout(), "lineages", all)
	}
	return printSnapshots(cmd.OutOrStdout(), all, o.now())
}

func printSnapshots(out io.Writer, all []*daemonv1.Lineage, now time.Time) error {
	t := newTable(out)
	t.row("WORKLOAD", "SEQUENCE", "AGE", "IMAGE", "SENT", "OWNER", "NOTE", "NAME")
	for _, l := range all {
		if len(l.GetGenerations()) == 0 {
			t.row(workloadOf(l), none, none, none, none, orNone(ownerText(l)), orNone(lineageNote(l, nil, now)), l.GetName())
		}
		for _, g := range l.GetGenerations() {
			t.row(workloadOf(l), strconv.FormatUint(g.GetSequence(), 10), ago(now, g.GetCreatedUnixMs()), humanBytes(g.GetImageBytes()),
				humanBytes(g.GetSentBytes()), orNone(ownerText(l)), orNone(lineageNote(l, g, now)), l.GetName())
		}
	}
	return t.flush()
}

// workloadOf is that of this node.
func workloadOf(l *daemonv1.Lineage) string {
	if l.GetId() == "" {
		return none
	}
	if l.GetIdentity() != "" {
		return l.GetNamespace() + "/" + l.GetIdentity()
	}
	return l.GetNamespace() + "/" + shortID(l.GetId())
}

// ownerText says who may run a workload, or, where anybody may, whose it was last.
func ownerText(l *daemonv1.Lineage) string {
	if l.GetOwner() == "" && l.GetLast() != "" {
		return "any, last " + l.GetLast()
	}
	return l.GetOwner()
}

// lineageNote is what is unusual of a lineage, or of one of its generations.
func lineageNote(l *daemonv1.Lineage, g *daemonv1.Generation, now time.Time) string {
	var notes []string
	switch {
	case l.GetError() != "":
		notes = append(notes, "can't be read: "+l.GetError())
	case l.GetState() == "deleted":
		notes = append(notes, "destroyed")
	case l.GetState() == "running" && l.GetOwner() == "":
		notes = append(notes, "it ran on and ended")
	case l.GetState() == "restoring":
		notes = append(notes, "being restored")
	}
	if g.GetPinned() {
		notes = append(notes, "pinned")
	}
	if l.GetGoneUnixMs() != 0 {
		notes = append(notes, "container gone "+ago(now, l.GetGoneUnixMs())+" ago")
	}
	if at := l.GetDeleteUnixMs(); at != 0 {
		notes = append(notes, "destroyed in "+humanDuration(max(time.UnixMilli(at).Sub(now), 0)))
	}
	return strings.Join(notes, ", ")
}

func (o *options) verifySnapshot(cmd *cobra.Command, req *daemonv1.VerifySnapshotRequest) error {
	ctx, cancel := o.deadline(cmd.Context(), 6*time.Hour)
	defer cancel()
	shown := o.shown(cmd)
	var last *daemonv1.VerifySnapshotResponse
	err := stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.VerifySnapshotResponse, error)
	}, error) {
		return c.VerifySnapshot(ctx, req)
	}, func(m *daemonv1.VerifySnapshotResponse) (bool, error) {
		last = m
		shown.line("%s of %s", humanBytes(m.GetDoneBytes()), humanBytes(m.GetAllBytes()))
		return m.GetVerified() != nil, nil
	})
	shown.end()
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), last)
	}
	g := last.GetVerified()
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "snapshot %d of %s is whole: %s, read back and compared\n", g.GetSequence(), last.GetName(), humanBytes(g.GetImageBytes()))
	return err
}

// errNotCollected: at least one lineage failed.
var errNotCollected = errors.New("not all could be looked at")

func (o *options) collectSnapshots(cmd *cobra.Command, req *daemonv1.CollectSnapshotsRequest) error {
	ctx, cancel := o.deadline(cmd.Context(), time.Hour)
	defer cancel()
	var all []*daemonv1.Collection
	err := stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.Collection, error)
	}, error) {
		return c.CollectSnapshots(ctx, req)
	}, func(m *daemonv1.Collection) (bool, error) {
		if !m.GetEnd() {
			all = append(all, m)
		}
		return m.GetEnd(), nil
	})
	if err != nil {
		return err
	}
	if o.output == "json" {
		err = printAll(cmd.OutOrStdout(), "collections", all)
	} else {
		err = printCollections(cmd.OutOrStdout(), all, req.GetDryRun(), o.now())
	}
	for _, c := range all {
		if c.GetError() != "" {
			return errors.Join(err, errNotCollected)
		}
	}
	return err
}

func printCollections(out io.Writer, all []*daemonv1.Collection, dry bool, now time.Time) error {
	drop, del := "dropped", "deleted"
	if dry {
		drop, del = "would be dropped", "would be deleted"
	}
	var objects, bytes uint64
	t := newTable(out)
	for _, c := range all {
		objects, bytes = objects+c.GetDeletedObjects(), bytes+c.GetDeletedBytes()
		if c.GetError() != "" {
			fmt.Fprintf(t.w, "%s: %s\n", c.GetName(), c.GetError())
			continue
		}
		if len(c.GetDropped())+len(c.GetDeleted())+len(c.GetUnknown()) > 0 {
			fmt.Fprintf(t.w, "%s: %d objects\n", c.GetName(), c.GetObjects())
		}
		for _, sequence := range c.GetDropped() {
			t.row(fmt.Sprintf("  snapshot %d", sequence), drop)
		}
		for _, g := range c.GetDeleted() {
			t.row("  "+g.GetName(), del, humanBytes(g.GetBytes()), ago(now, g.GetModifiedUnixMs())+" old")
		}
		if more := c.GetDeletedObjects() - uint64(len(c.GetDeleted())); more > 0 {
			t.row(fmt.Sprintf("  and %d more", more), del)
		}
		for _, name := range c.GetUnknown() {
			t.row("  "+name, "is none of ours: left alone")
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d objects (%s) %s\n", objects, humanBytes(bytes), del)
	return err
}

// printAll writes messages as one JSON object with a list.
func printAll[M proto.Message](out io.Writer, name string, all []M) error {
	list := make([]json.RawMessage, 0, len(all))
	for _, m := range all {
		raw, err := toJSON(m)
		if err != nil {
			return err
		}
		list = append(list, raw)
	}
	return encode(out, map[string][]json.RawMessage{name: list})
}

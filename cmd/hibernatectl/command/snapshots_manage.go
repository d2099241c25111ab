package command

import (
	"context"
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

const pinHelp = `Keeps a snapshot in the store, the newest one without @SEQUENCE, whatever its age and however many come after it.

It counts among the bytes that store-quota bounds. snapshots ls tells it in NOTE; unpin ends it.`

const removeHelp = `Removes one snapshot, NAME@SEQUENCE, or with NAME alone all of a workload that is gone, from the store.

Without @SEQUENCE the workload's key is deleted first: nothing of it can ever be read again, by nobody, not even from a copy of the
bucket. Refused, with the reason: what is pinned; the newest snapshot of a workload that is there, without --force; all snapshots of a
workload that is on this node; those that another node has claimed, without --force.`

const rewrapHelp = `Wraps the key of each workload's snapshots anew, with the key that hibernated is configured with now.

After it the keys in store-older-keys are no longer needed. Only heads are written, one for each workload: snapshots stay as they are,
and what sleeps is not touched. Ended anywhere, it goes on when it is called again. With --dry-run it tells what is still to be done.`

func newSnapshotsManage(o *options) []*cobra.Command {
	var force, dry bool
	show := &cobra.Command{
		Use: "show NAME[@SEQUENCE]", Short: "Show all about one", Long: "Shows all that is known of a snapshot in the store, the newest one without @SEQUENCE.",
		RunE: o.withSnapshot(func(cmd *cobra.Command, name string, sequence uint64) error {
			return o.showSnapshot(cmd, &daemonv1.ShowSnapshotRequest{Name: name, Sequence: sequence})
		}),
	}
	pin := &cobra.Command{
		Use: "pin NAME[@SEQUENCE]", Short: "Keep one whatever its age", Long: pinHelp,
		RunE: o.withSnapshot(func(cmd *cobra.Command, name string, sequence uint64) error {
			return o.pinSnapshot(cmd, &daemonv1.PinSnapshotRequest{Name: name, Sequence: sequence})
		}),
	}
	unpin := &cobra.Command{
		Use: "unpin NAME[@SEQUENCE]", Short: "End that one is kept whatever its age", Long: pinHelp,
		RunE: o.withSnapshot(func(cmd *cobra.Command, name string, sequence uint64) error {
			return o.pinSnapshot(cmd, &daemonv1.PinSnapshotRequest{Name: name, Sequence: sequence, Unpin: true})
		}),
	}
	remove := &cobra.Command{
		Use: "rm NAME[@SEQUENCE]", Short: "Remove one, or destroy all of a workload that is gone", Long: removeHelp,
		RunE: o.withSnapshot(func(cmd *cobra.Command, name string, sequence uint64) error {
			return o.removeSnapshot(cmd, &daemonv1.RemoveSnapshotRequest{Name: name, Sequence: sequence, Force: force})
		}),
	}
	remove.Flags().BoolVar(&force, "force", false, "also the newest of a workload that is there, and what a node has claimed that is gone for good")
	rewrap := &cobra.Command{
		Use: "rewrap [NAME]", Short: "Wrap the keys anew, with the current one", Long: rewrapHelp, Args: atMost(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.rewrapSnapshots(cmd, &daemonv1.RewrapSnapshotsRequest{Name: strings.Join(args, ""), DryRun: dry})
		},
	}
	rewrap.Flags().BoolVar(&dry, "dry-run", false, "write nothing, and tell what is still to be done")
	for _, c := range []*cobra.Command{show, pin, unpin, remove} {
		c.Args = atMost(1, "one NAME")
	}
	return []*cobra.Command{show, pin, unpin, remove, newSnapshotsExport(o), newSnapshotsImport(o), rewrap}
}

// withSnapshot gives the name and sequence of the one argument.
func (o *options) withSnapshot(run func(cmd *cobra.Command, name string, sequence uint64) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		name, sequence, err := parseSnapshot(strings.Join(args, ""))
		if err != nil {
			return err
		}
		return run(cmd, name, sequence)
	}
}

// parseSnapshot takes NAME or NAME@SEQUENCE; 0 is none.
func parseSnapshot(arg string) (name string, sequence uint64, err error) {
	name, number, given := strings.Cut(arg, "@")
	if name == "" {
		return "", 0, usageError{errors.New("the NAME of a workload is wanted")}
	}
	if given {
		if sequence, err = strconv.ParseUint(number, 10, 64); err != nil || sequence == 0 {
			return "", 0, usageError{fmt.Errorf("%q: what comes after @ is no number above 0", arg)}
		}
	}
	return name, sequence, nil
}

// askStore makes one call of the daemon that takes longer than an answer from memory.
func askStore[Req, Resp any](ctx context.Context, o *options, fits time.Duration,
	method func(daemonv1.TTRPCDaemonClient, context.Context, *Req) (*Resp, error), req *Req,
) (*Resp, error) {
	ctx, cancel := o.deadline(ctx, fits)
	defer cancel()
	client, err := dialDaemon(ctx, o.runDir)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resp, err := method(daemonv1.NewTTRPCDaemonClient(client), ctx, req)
	if err != nil {
		return nil, fmt.Errorf("ask hibernated: %w", errgrpc.ToNative(err))
	}
	return resp, nil
}

// answer prints a message as JSON, or in words.
func (o *options) answer(cmd *cobra.Command, m proto.Message, format string, args ...any) error {
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), m)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

func (o *options) showSnapshot(cmd *cobra.Command, req *daemonv1.ShowSnapshotRequest) error {
	resp, err := askStore(cmd.Context(), o, 2*time.Minute, daemonv1.TTRPCDaemonClient.ShowSnapshot, req)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), resp)
	}
	return printSnapshot(cmd.OutOrStdout(), resp, o.now())
}

func printSnapshot(out io.Writer, s *daemonv1.ShowSnapshotResponse, now time.Time) error {
	l, g := s.GetLineage(), s.GetGeneration()
	t := newTable(out)
	t.row("Name", l.GetName())
	t.row("Workload", workloadOf(l))
	t.row("Sequence", fmt.Sprintf("%d of epoch %d", g.GetSequence(), g.GetEpoch()))
	t.row("Made", ago(now, g.GetCreatedUnixMs())+" ago on "+orNone(s.GetNode()))
	t.row("After", afterText(s))
	t.row("Size", fmt.Sprintf("%s; %s were sent for it, a restore reads %s", humanBytes(g.GetImageBytes()), humanBytes(g.GetSentBytes()), humanBytes(g.GetFetchBytes())))
	t.row("Runtime", orNone(strings.TrimSpace("runsc "+s.GetRuntime()+", "+s.GetPlatform())))
	t.row("Owner", orNone(ownerText(l)))
	t.row("Key", l.GetKey())
	t.row("Note", orNone(lineageNote(l, g, now)))
	for _, c := range s.GetContainers() {
		t.row("Container", c.GetId(), c.GetImage())
	}
	for _, f := range s.GetFiles() {
		t.row("File", f.GetName(), humanBytes(f.GetBytes()))
	}
	return t.flush()
}

func afterText(s *daemonv1.ShowSnapshotResponse) string {
	if s.GetParent() == 0 {
		return none
	}
	text := strconv.FormatUint(s.GetParent(), 10)
	if n := s.GetGeneration().GetChain(); n > 0 {
		text += fmt.Sprintf("; %d since a full upload", n)
	}
	return text
}

func (o *options) pinSnapshot(cmd *cobra.Command, req *daemonv1.PinSnapshotRequest) error {
	resp, err := askStore(cmd.Context(), o, 2*time.Minute, daemonv1.TTRPCDaemonClient.PinSnapshot, req)
	if err != nil {
		return err
	}
	state := "is pinned: it is kept until it is unpinned"
	if req.GetUnpin() {
		state = "is not pinned: it goes when newer ones have taken its place"
	}
	return o.answer(cmd, resp, "snapshot %d of %s %s", resp.GetGeneration().GetSequence(), resp.GetName(), state)
}

func (o *options) removeSnapshot(cmd *cobra.Command, req *daemonv1.RemoveSnapshotRequest) error {
	resp, err := askStore(cmd.Context(), o, 10*time.Minute, daemonv1.TTRPCDaemonClient.RemoveSnapshot, req)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("snapshot %d of %s is removed", req.GetSequence(), resp.GetName())
	if req.GetSequence() == 0 {
		what = fmt.Sprintf("all snapshots of %s are destroyed: their key is deleted, and nothing can read them any more", resp.GetName())
	}
	return o.answer(cmd, resp, "%s; %d objects (%s) are deleted, the rest goes within two hours", what, resp.GetDeletedObjects(), humanBytes(resp.GetDeletedBytes()))
}

// errNotRewrapped: at least one lineage failed.
var errNotRewrapped = errors.New("not all keys could be wrapped anew: keep the older keys configured, mend what is told, and call it again")

func (o *options) rewrapSnapshots(cmd *cobra.Command, req *daemonv1.RewrapSnapshotsRequest) error {
	ctx, cancel := o.deadline(cmd.Context(), 6*time.Hour)
	defer cancel()
	shown := o.shown(cmd)
	var all []*daemonv1.Rewrapped
	err := stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.Rewrapped, error)
	}, error) {
		return c.RewrapSnapshots(ctx, req)
	}, func(m *daemonv1.Rewrapped) (bool, error) {
		if !m.GetEnd() {
			all = append(all, m)
			shown.line("%d done, %d left", len(all), m.GetLeft())
		}
		return m.GetEnd(), nil
	})
	shown.end()
	if err != nil {
		return err
	}
	failed := 0
	for _, r := range all {
		if r.GetError() != "" {
			failed++
		}
	}
	if o.output == "json" {
		err = printAll(cmd.OutOrStdout(), "rewrapped", all)
	} else {
		err = printRewrapped(cmd.OutOrStdout(), all, req.GetDryRun())
	}
	if failed > 0 {
		return errors.Join(err, errNotRewrapped)
	}
	return err
}

func printRewrapped(out io.Writer, all []*daemonv1.Rewrapped, dry bool) error {
	did, anew, already := "wrapped anew", 0, 0
	if dry {
		did = "to be wrapped anew"
	}
	t := newTable(out)
	for _, r := range all {
		switch {
		case r.GetError() != "":
			t.row(r.GetName(), "failed: "+r.GetError())
		case r.GetAlready():
			already++
		default:
			anew++
			t.row(r.GetName(), r.GetFrom()+" -> "+r.GetTo(), did)
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d %s, %d had the current key, %d failed\n", anew, did, already, len(all)-anew-already)
	return err
}

// shown is where progress is told: nowhere, on one line of a terminal, or line by line.
type shown struct {
	to       io.Writer
	terminal bool
	told     time.Time
	any      bool
}

// shown is on a terminal, or where --progress wants it.
func (o *options) shown(cmd *cobra.Command) *shown {
	terminal := isTerminal(cmd.ErrOrStderr())
	if !terminal && !o.progress {
		return &shown{}
	}
	return &shown{to: cmd.ErrOrStderr(), terminal: terminal}
}

func (s *shown) line(format string, args ...any) {
	if s.to == nil || !s.terminal && time.Since(s.told) < time.Second {
		return
	}
	s.told, s.any = time.Now(), true
	if s.terminal {
		format = "\r" + format + "  "
	} else {
		format += "\n"
	}
	fmt.Fprintf(s.to, format, args...)
}

func (s *shown) end() {
	if s.terminal && s.any {
		fmt.Fprintln(s.to)
	}
}

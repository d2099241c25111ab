package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

const eventsHelp = `Shows what became of the hibernations and wakes of this node's workloads, the oldest first, from hibernated's log on the disk: slept, woken,
cold (started anew), blocked, postponed, lost, refused, aborted, failed, fenced; and ended and removed.

With -f it goes on until it is ended, also while hibernated is restarted. Each event has a number of its own on this node: --after goes on
where an earlier command ended. With -o json there is an object on each line.`

// eventsFor is how long one question for events may take; followFor how long hibernated waits for one.
const (
	eventsFor  = 10 * time.Second
	followFor  = 20 * time.Second
	followPace = time.Second // between two tries while hibernated doesn't answer
)

type eventsFlags struct {
	follow bool
	since  time.Duration
	after  uint64
}

func newEvents(o *options) *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use: "events", Short: "Show what became of hibernations and wakes", Long: eventsHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.since < 0 {
				return usageError{fmt.Errorf("--since %s: negative", f.since)}
			}
			return o.events(cmd, f)
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what happens from now on")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only the events of so long ago or later (default: all that the log has)")
	cmd.Flags().Uint64Var(&f.after, "after", 0, "only the events after this number")
	return cmd
}

// events prints pages until there are no more, or ctx ends.
func (o *options) events(cmd *cobra.Command, f eventsFlags) error {
	req := &daemonv1.EventsRequest{After: f.after}
	if f.since > 0 {
		req.SinceUnixMs = o.now().Add(-f.since).UnixMilli()
	}
	var log string
	for {
		resp, err := o.askEvents(cmd.Context(), req)
		switch {
		case cmd.Context().Err() != nil && f.follow:
			return nil
		case err != nil && f.follow && log != "": // it is restarted
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(followPace):
				continue
			}
		case err != nil:
			return err
		}
		if log != "" && log != resp.GetLog() {
			req.After, log = 0, resp.GetLog() // another log: what it has was before
			continue
		}
		if err := o.printEvents(cmd.OutOrStdout(), resp.GetEvents()); err != nil {
			return err
		}
		log, req.After = resp.GetLog(), resp.GetLast()
		if len(resp.GetEvents()) > 0 {
			continue
		}
		if !f.follow {
			return nil
		}
		req.WaitMs = uint32(followFor.Milliseconds())
	}
}

// askEvents makes one call.
func (o *options) askEvents(ctx context.Context, req *daemonv1.EventsRequest) (*daemonv1.EventsResponse, error) {
	ctx, cancel := o.deadline(ctx, eventsFor+time.Duration(req.GetWaitMs())*time.Millisecond)
	defer cancel()
	client, err := dialDaemon(ctx, o.runDir)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resp, err := daemonv1.NewTTRPCDaemonClient(client).Events(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("ask hibernated: %w", errgrpc.ToNative(err))
	}
	return resp, nil
}

// printEvents writes one line each, so that those who follow see each at once.
func (o *options) printEvents(out io.Writer, all []*daemonv1.LoggedEvent) (err error) {
	for _, e := range all {
		if o.output == "json" {
			raw, jerr := toJSONLine(e)
			if jerr != nil {
				return jerr
			}
			_, werr := out.Write(raw)
			err = errors.Join(err, werr)
			continue
		}
		_, werr := fmt.Fprintf(out, "%d  %s  %-9s %s/%s%s\n", e.GetSeq(), time.UnixMilli(e.GetTimeUnixMs()).UTC().Format("2006-01-02T15:04:05.000Z"),
			e.GetWhat(), e.GetNamespace(), e.GetId(), eventTail(e))
		err = errors.Join(err, werr)
	}
	return err
}

func eventTail(e *daemonv1.LoggedEvent) (text string) {
	if e.GetTransition() != "" {
		text += "  " + humanMillis(e.GetMs())
	}
	if e.GetReason() != "" {
		text += "  reason " + e.GetReason()
	}
	if e.GetOutcome() != "" && e.GetOutcome() != e.GetWhat() {
		text += "  " + e.GetOutcome()
	}
	if e.GetDetail() != "" {
		text += "  " + e.GetDetail()
	}
	return text
}

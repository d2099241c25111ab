package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

func newWhyAwake(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "why-awake [NAMESPACE/]ID", Short: "Tell what keeps a workload awake", Args: workloadArg,
		Long: "Tells what keeps a workload awake, the most decisive reason first. The codes in brackets are stable.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readFleet(o.runDir)
			if err != nil {
				return err
			}
			record, err := f.find(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := o.deadline(cmd.Context(), 5*time.Second)
			defer cancel()
			resp, err := whyAwake(ctx, record, o.runDir)
			if err != nil {
				return fmt.Errorf("%s: %w", keyOf(record), err)
			}
			addFrozenReason(resp, frozen(o.freezes(), record.Namespace, record.ID))
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			return printWhy(cmd.OutOrStdout(), keyOf(record).String(), resp)
		},
	}
}

// whyAwake asks the daemon; without one, the shim, whose workload then stays awake for want of a daemon too.
func whyAwake(ctx context.Context, record handover.Record, runDir string) (*daemonv1.WhyAwakeResponse, error) {
	req := &daemonv1.WhyAwakeRequest{Namespace: record.Namespace, Id: record.ID}
	resp, noAnswer := askDaemon(ctx, runDir, daemonClient.WhyAwake, req)
	if noAnswer == nil {
		return resp, nil
	}
	client, err := dial(record)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	status, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	resp = &daemonv1.WhyAwakeResponse{State: status.GetState()}
	if status.GetState() == "awake" {
		resp.Reasons = append([]*shimv1.Reason{daemonReason(noAnswer)}, status.GetBlockers()...)
	}
	return resp, nil
}

// addFrozenReason adds a freeze that hibernated hasn't told of yet, or can't.
func addFrozenReason(resp *daemonv1.WhyAwakeResponse, why *shimv1.Reason) {
	told := slices.ContainsFunc(resp.GetReasons(), func(r *shimv1.Reason) bool { return r.GetCode() == "frozen" })
	if why == nil || told || resp.GetState() != "awake" {
		return
	}
	resp.Reasons = append([]*shimv1.Reason{why}, resp.GetReasons()...)
	if resp.Idle != nil {
		resp.Idle.SleepsInMs = -1
	}
}

func daemonReason(err error) *shimv1.Reason {
	if errors.Is(err, errNoDaemon) {
		return &shimv1.Reason{Code: "no-daemon", Detail: "hibernated is not running: nothing hibernates without it"}
	}
	return &shimv1.Reason{Code: "daemon", Detail: err.Error()}
}

func printWhy(out io.Writer, name string, resp *daemonv1.WhyAwakeResponse) error {
	idle := resp.GetIdle()
	switch {
	case resp.GetState() != "awake":
		fmt.Fprintf(out, "%s is not awake: it is %s\n", name, resp.GetState())
	case len(resp.GetReasons()) == 0:
		fmt.Fprintf(out, "%s is awake and idle: it is about to sleep\n", name)
	case idle.GetSleepsInMs() >= 0 && idle != nil:
		fmt.Fprintf(out, "%s is awake, and sleeps in %s unless it is used:\n", name, millis(idle.GetSleepsInMs()))
	default:
		fmt.Fprintf(out, "%s is awake, and stays so as long as this holds:\n", name)
	}
	for _, reason := range resp.GetReasons() {
		fmt.Fprintf(out, "  - %s [%s]\n", reason.GetDetail(), reason.GetCode())
	}
	if idle.GetMode() != "" && resp.GetState() == "awake" {
		fmt.Fprintf(out, "mode %s, idle for %s, idle timeout %s\n", idle.GetMode(), millis(idle.GetIdleForMs()), millis(idle.GetTimeoutMs()))
	}
	return nil
}

func millis(ms int64) string { return humanDuration(time.Duration(ms) * time.Millisecond) }

package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
)

const wakeHelp = `Wakes a workload and returns when it is awake. A workload that is awake stays so.

With --from it goes on from a snapshot that is named by its sequence: an older one, which is on the node or in the store (hibernatectl
snapshots ls). It must be asleep or blocked. What it was last is not lost: that snapshot is kept, and told, and can be woken from in the
same way.

With --allow-stale-volumes it is restored over mounts of the host's whose files have gone on without it, which is refused otherwise: a database
whose memory is older than its files destroys them. It must be asleep or blocked.

With --all everything that sleeps wakes, or all of it that MATCH fits (ID or NAMESPACE/ID, with * and ?), a few at a time, with a line for each.
Those that did not wake are named with the reason; exit code 4 then.

With --wait it also waits until one of the ports that were listening accepts a connection at the workload's address.`

func newWake(o *options) *cobra.Command {
	a := &wakeAll{options: o}
	var all, wait, stale bool
	var from uint64
	cmd := &cobra.Command{
		Use: "wake [NAMESPACE/]ID", Short: "Wake a workload, or all", Long: wakeHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if all {
				return matchArg(cmd, args)
			}
			return workloadArg(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if all {
				if from != 0 || a.parallel < 1 {
					return usageError{errors.New("--all: neither goes with --from, nor with --parallel below 1")}
				}
				a.stale, a.wait = stale, wait
				return a.run(cmd, match(args, freeze.Node))
			}
			f, err := readFleet(o.runDir)
			if err != nil {
				return err
			}
			record, err := f.find(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := o.deadline(cmd.Context(), 2*time.Minute)
			defer cancel()
			resp, err := wake(ctx, record, &shimv1.WakeRequest{Reason: "request", From: from, StaleVolumes: stale}, wait)
			if err != nil {
				return fmt.Errorf("%s: %w", keyOf(record), err)
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is awake%s\n", keyOf(record), howWoken(resp.GetTransition()))
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "wake all that sleeps, or all of it that MATCH fits")
	cmd.Flags().IntVar(&a.parallel, "parallel", max(2, runtime.NumCPU()), "with --all: how many wake at once")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until a port that was listening accepts")
	cmd.Flags().Uint64Var(&from, "from", 0, "the `sequence` of the snapshot to wake from; the newest without it")
	cmd.Flags().BoolVar(&stale, "allow-stale-volumes", false, "restore over files that have gone on without the snapshot")
	return cmd
}

func howWoken(t *shimv1.Transition) string {
	if t.GetOutcome() == "" {
		return ""
	}
	text := " (" + t.GetOutcome() + " in " + humanMillis(t.GetTotalMs())
	if t.GetDetail() != "" {
		text += ": " + t.GetDetail()
	}
	return text + ")"
}

func wake(ctx context.Context, record handover.Record, ask *shimv1.WakeRequest, wait bool) (*shimv1.WakeResponse, error) {
	client, err := dial(record)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resp, err := client.Wake(ctx, ask)
	if err != nil {
		return nil, err
	}
	if resp.GetTransition().GetOutcome() == "blocked" {
		return nil, fmt.Errorf("%w: %s", errNotAwake, resp.GetTransition().GetDetail())
	}
	if wait {
		err = waitReady(ctx, client)
	}
	return resp, err
}

// waitReady returns when the workload is awake and one of its listening ports accepts; without ports, when it is awake.
func waitReady(ctx context.Context, client *shimclient.Client) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var status *shimv1.StatusResponse
	for ctx.Err() == nil {
		now, err := client.Status(ctx)
		if err != nil && (ctx.Err() == nil || status == nil) {
			return err
		}
		if err == nil {
			status = now
		}
		if status.GetState() == "awake" && (len(status.GetPorts()) == 0 || accepts(ctx, status)) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("it is %s, and none of its ports %s accepts: %w",
		status.GetState(), portList(status.GetPorts()), context.Cause(ctx))
}

// accepts tries each port at each address once.
func accepts(ctx context.Context, status *shimv1.StatusResponse) bool {
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range status.GetAddresses() {
		ip, err := parseAddress(address)
		if err != nil {
			continue
		}
		for _, port := range status.GetPorts() {
			conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(int(port))))
			if err == nil {
				_ = conn.Close()
				return true
			}
		}
	}
	return false
}

// parseAddress takes an address, with or without a prefix length.
func parseAddress(text string) (netip.Addr, error) {
	ip, _, _ := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(ip)
	if err == nil && !addr.IsValid() {
		err = errors.New("no address")
	}
	return addr, err
}

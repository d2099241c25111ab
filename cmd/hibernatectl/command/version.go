package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/internal/version"
)

func newVersion(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the versions of hibernatectl and of hibernated", Args: noArgs,
		Long: "Shows the version of hibernatectl, and that of hibernated if it runs.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := o.deadline(cmd.Context(), daemonTimeout)
			defer cancel()
			resp, err := askDaemon(ctx, o.runDir, daemonClient.Version, &daemonv1.VersionRequest{})
			if o.output == "json" {
				return versionJSON(cmd.OutOrStdout(), resp, err)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "hibernatectl  %s\n", version.Version)
			switch {
			case errors.Is(err, errNoDaemon):
				fmt.Fprintln(out, "hibernated    not running")
			case err != nil:
				return err
			default:
				since := time.UnixMilli(resp.GetStartedUnixMs()).UTC().Format(time.RFC3339)
				fmt.Fprintf(out, "hibernated    %s, since %s\n", resp.GetVersion(), since)
				printStore(out, resp.GetStore())
			}
			return nil
		},
	}
}

// versions is what version -o json prints; hibernated is null when it does not run.
type versions struct {
	Hibernatectl string          `json:"hibernatectl"`
	Hibernated   *daemonVersions `json:"hibernated"`
}

type daemonVersions struct {
	Version       string          `json:"version"`
	StartedUnixMs int64           `json:"started_unix_ms"`
	Store         json.RawMessage `json:"store"` // null when there is none
}

// printStore tells of the durable tier, where there is one.
func printStore(out io.Writer, s *daemonv1.StoreCondition) {
	if s == nil {
		return
	}
	fmt.Fprintf(out, "store         %s: %s\n", s.GetUrl(), s.GetCondition())
	if s.GetWaiting()+s.GetStuck() > 0 {
		fmt.Fprintf(out, "              lacks the newest snapshot of %d workloads, of one for %s; %d of them are not tried again\n",
			s.GetWaiting()+s.GetStuck(), humanDuration(time.Duration(s.GetLagMs())*time.Millisecond), s.GetStuck())
	}
	if s.GetAheadMs() != 0 {
		fmt.Fprintf(out, "              its clock differs from this machine's by %s\n", (time.Duration(s.GetAheadMs()) * time.Millisecond).Abs())
	}
}

func versionJSON(out io.Writer, resp *daemonv1.VersionResponse, err error) error {
	if err != nil && !errors.Is(err, errNoDaemon) {
		return err
	}
	all := versions{Hibernatectl: version.Version}
	if resp != nil {
		all.Hibernated = &daemonVersions{Version: resp.GetVersion(), StartedUnixMs: resp.GetStartedUnixMs()}
		if resp.GetStore() != nil {
			if all.Hibernated.Store, err = toJSON(resp.GetStore()); err != nil {
				return err
			}
		}
	}
	return encode(out, all)
}

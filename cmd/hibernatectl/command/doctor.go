package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/doctor"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/version"
)

const doctorHelp = `Looks over the node and says what is wrong with it, what that means, and what to do: kernel, limits, programs, containerd, hibernated, store,
disk, permissions. It changes nothing. Run it as root.

Exit code 6 when there is a problem; 0 when all is well, or there are warnings alone.

With --bundle FILE.tar.gz it also collects the results, versions, the configuration without secrets, and what is known of each workload, for who
helps: nothing of a workload's memory, environment, files or output. The file's README.txt says what is in it.`

// errProblems means that doctor has found some.
var errProblems = errors.New("problems were found")

func newDoctor(o *options) *cobra.Command {
	var bundle string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look over the node, and say what to mend", Long: doctorHelp, Args: noArgs,
		// A configuration that can't be read is a finding here, not an error.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.settle(cmd); err != nil {
				var usage usageError
				if errors.As(err, &usage) {
					return err
				}
				o.runDir = config.Default().RunDir
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := o.deadline(cmd.Context(), time.Minute)
			defer cancel()
			h := o.host()
			results := doctor.Run(ctx, h)
			var text bytes.Buffer
			if err := printDoctor(&text, results); err != nil {
				return err
			}
			err := o.showDoctor(cmd.OutOrStdout(), results, text.String())
			if err == nil && bundle != "" {
				if err = o.writeBundle(ctx, bundle, h, results, text.String()); err == nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s has it all; look into it before you give it away\n", bundle)
				}
			}
			if err == nil && doctor.Worst(results) == doctor.Problem {
				err = errProblems
			}
			return err
		},
	}
	cmd.Flags().StringVar(&bundle, "bundle", "", "collect what helps others into this new `file`, a gzipped tar archive")
	return cmd
}

// host is this machine, as far as hibernatectl knows it.
func (o *options) host() *doctor.Host {
	h := doctor.NewHost(o.config)
	h.Config.RunDir = o.runDir
	h.Version = version.Version
	h.Daemon = func(ctx context.Context) (*daemonv1.VersionResponse, error) {
		return askDaemon(ctx, o.runDir, daemonClient.Version, &daemonv1.VersionRequest{})
	}
	if f, err := readFleet(o.runDir); err == nil {
		h.Workloads = len(f.records)
	}
	return h
}

func (o *options) showDoctor(out io.Writer, results []doctor.Result, text string) error {
	if o.output == "json" {
		return encode(out, struct {
			Version string          `json:"version"`
			Worst   doctor.Level    `json:"worst"`
			Checks  []doctor.Result `json:"checks"`
		}{version.Version, doctor.Worst(results), results})
	}
	_, err := io.WriteString(out, text)
	return err
}

func printDoctor(out io.Writer, results []doctor.Result) error {
	t := newTable(out)
	counts := map[doctor.Level]int{}
	for _, r := range results {
		counts[r.Level]++
		t.row(string(r.Level), r.Check, r.Finding)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, level := range []doctor.Level{doctor.Problem, doctor.Warning} {
		for _, r := range results {
			if r.Level == level {
				fmt.Fprintf(out, "\n%s: %s: %s\n  means: %s\n  do:    %s\n", level, r.Check, r.Finding, r.Means, r.Do)
			}
		}
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d warnings, %d problems\n", counts[doctor.OK], counts[doctor.Warning], counts[doctor.Problem])
	return err
}

// writeBundle collects all, as far as each part answers.
func (o *options) writeBundle(ctx context.Context, path string, h *doctor.Host, results []doctor.Result, text string) error {
	c := doctor.Collected{
		Results: results, Text: text, ConfigFile: o.config, At: o.now().UTC(), Wakes: make(map[string][]*shimv1.Transition),
		Versions: map[string]string{"hibernatectl": version.Version},
	}
	for _, r := range results {
		switch r.Check {
		case "kernel", "runsc", "sidecar", "containerd", "daemon":
			c.Versions[r.Check] = r.Finding
		}
	}
	if f, err := readFleet(o.runDir); err == nil {
		c.Records = f.records
		c.Workloads, _ = f.askAll(ctx, o.runDir)
		addFrozen(c.Workloads, o.freezes())
		for _, r := range f.records {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			if wakes, _, err := lastWakes(asking, r, o.runDir); err == nil && len(wakes) > 0 {
				c.Wakes[keyOf(r).String()] = wakes
			}
			cancel()
		}
	}
	c.Node, _ = askDaemon(ctx, o.runDir, daemonClient.Node, &daemonv1.NodeRequest{})
	if address := h.Config.MetricsAddress; address != "" {
		c.Metrics, c.Health = download(ctx, address, "/metrics"), download(ctx, address, "/healthz")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if err := errors.Join(doctor.WriteBundle(f, c), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("bundle: %w", err), os.Remove(path))
	}
	return nil
}

// download is what hibernated serves at a path, or why it doesn't.
func download(ctx context.Context, address, path string) string {
	const most = 8 << 20
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err.Error()
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // it asks this machine: no proxy is between
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return err.Error()
	}
	return response.Status + "\n" + string(text)
}

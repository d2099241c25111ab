package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

const exportHelp = `Writes what a container has changed in its root file system, as a tar archive, to standard output or to a new file.

The changes are in the sandbox's memory, where snapshots and commits of engines don't see them. A workload that sleeps is
woken. Deleted files are in the archive as character devices 0:0, as overlay file systems note them.`

func newExportRootfs(o *options) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "export-rootfs [NAMESPACE/]ID", Short: "Write a container's changed files as a tar archive", Long: exportHelp, Args: workloadArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if path == "" && isTerminal(cmd.OutOrStdout()) {
				return usageError{errors.New("an archive is not for a terminal: name a file with -o, or redirect the output")}
			}
			return o.withShim(cmd, args[0], 10*time.Minute, func(ctx context.Context, client *shimclient.Client) error {
				return export(ctx, client, path, cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "new file to write (default: standard output)")
	return cmd
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// export lets the shim write to a descriptor of ours, which has the same meaning in any mount namespace.
func export(ctx context.Context, client *shimclient.Client, path string, stdout io.Writer) error {
	if path == "" {
		return exportTo(ctx, client, stdout)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(exportInto(ctx, client, f), f.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func exportTo(ctx context.Context, client *shimclient.Client, stdout io.Writer) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(stdout, r)
		copied <- errors.Join(err, r.Close()) // closed early, it ends a writer who goes on
	}()
	err = errors.Join(exportInto(ctx, client, w), w.Close())
	return errors.Join(err, <-copied)
}

func exportInto(ctx context.Context, client *shimclient.Client, f *os.File) error {
	name := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	_, err := client.ExportRootfs(ctx, &shimv1.ExportRootfsRequest{Path: name})
	return err
}

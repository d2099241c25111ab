package command

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/internal/config"
	tier "github.com/hibernate-runtime/hibernate/snapshot"
)

const snapshotsExportHelp = `Writes a snapshot from the store, the newest one without @SEQUENCE, into a new directory DIR, or with --tar into a new archive FILE; - is
standard output. With --local it is the one that this node has of the workload NAMESPACE/ID, and no store is asked.

The files are the workload's memory and environment in clear: keep them accordingly. "snapshots import" takes them, and so does
"ctr containers restore" as a checkpoint.`

const snapshotsImportHelp = `Puts an exported snapshot, a directory or a tar archive, into the store, as the only one of a new NAME.

NAME is one or two words, joined by a slash; where a workload with an identity is to find it, it is the one that "snapshots ls" shows
for that. Nothing is overwritten.`

func newSnapshotsExport(o *options) *cobra.Command {
	var archive string
	var local bool
	cmd := &cobra.Command{
		Use: "export NAME[@SEQUENCE] (DIR | --tar FILE)", Short: "Write one into a directory or an archive", Long: snapshotsExportHelp, Args: atMost(2, "NAME and DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var arg, dir string
			if len(args) > 0 {
				arg = args[0]
			}
			if len(args) > 1 {
				dir = args[1]
			}
			name, sequence, err := parseSnapshot(arg)
			switch {
			case err != nil:
				return err
			case (dir == "") == (archive == ""):
				return usageError{errors.New("one of DIR and --tar FILE is wanted")}
			case local && (archive != "" || sequence != 0):
				return usageError{errors.New("--local takes the one that is there, and a DIR")}
			case archive == "-" && isTerminal(cmd.OutOrStdout()):
				return usageError{errors.New("an archive is not for a terminal: name a file, or redirect the output")}
			case local:
				return o.exportLocal(cmd, name, dir)
			}
			req := &daemonv1.ExportSnapshotRequest{Name: name, Sequence: sequence}
			if dir != "" {
				return o.exportTo(cmd, req, dir)
			}
			return o.exportArchive(cmd, req, archive)
		},
	}
	cmd.Flags().StringVar(&archive, "tar", "", "new archive to write, or - for standard output")
	cmd.Flags().BoolVar(&local, "local", false, "the snapshot that this node has; NAME is NAMESPACE/ID")
	return cmd
}

func newSnapshotsImport(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "import (DIR | FILE) NAME", Short: "Put an exported one into the store", Long: snapshotsImportHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] == "" || args[1] == "" {
				return usageError{errors.New("a directory or an archive is wanted, and the NAME that it gets in the store")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			dir := args[0]
			st, err := os.Stat(dir)
			if err != nil {
				return err
			}
			if !st.IsDir() {
				if dir, err = unpack(cmd.Context(), args[0]); err != nil {
					return err
				}
				defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			}
			return o.importSnapshot(cmd, dir, args[1])
		},
	}
}

// exportTo has the daemon write into a new directory, by a descriptor, which has the same meaning in any mount namespace.
func (o *options) exportTo(cmd *cobra.Command, req *daemonv1.ExportSnapshotRequest, dir string) error {
	return withNewDir(dir, func() error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		req.Directory = ofDescriptor(d)
		return o.exportSnapshot(cmd, cmd.OutOrStdout(), req, dir)
	})
}

// withNewDir makes a directory, or takes one that is empty; on error nothing is left in it, nor of it if it was made.
func withNewDir(dir string, write func() error) error {
	err := os.Mkdir(dir, 0o700)
	made := err == nil
	if errors.Is(err, os.ErrExist) {
		var there []os.DirEntry
		if there, err = os.ReadDir(dir); err == nil && len(there) > 0 {
			return fmt.Errorf("%s is not empty: nothing is overwritten; name a new directory", dir)
		}
	}
	if err == nil {
		err = write()
	}
	if err != nil && made {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func ofDescriptor(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

func (o *options) exportArchive(cmd *cobra.Command, req *daemonv1.ExportSnapshotRequest, path string) error {
	if path != "-" {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		req.Archive = ofDescriptor(f)
		if err = errors.Join(o.exportSnapshot(cmd, cmd.OutOrStdout(), req, path), f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(cmd.OutOrStdout(), r)
		copied <- errors.Join(err, r.Close()) // closed early, it ends a writer who goes on
	}()
	req.Archive = ofDescriptor(w)
	err = errors.Join(o.exportSnapshot(cmd, cmd.ErrOrStderr(), req, "standard output"), w.Close())
	return errors.Join(err, <-copied)
}

func (o *options) exportSnapshot(cmd *cobra.Command, out io.Writer, req *daemonv1.ExportSnapshotRequest, where string) error {
	last, err := o.followProgress(cmd, func(ctx context.Context, c daemonv1.TTRPCDaemonClient) (progressStream, error) {
		return c.ExportSnapshot(ctx, req)
	})
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(out, last)
	}
	g := last.GetGeneration()
	_, err = fmt.Fprintf(out, "snapshot %d of %s (%s) is in %s: it holds memory and environment in clear\n", g.GetSequence(), last.GetName(), humanBytes(g.GetImageBytes()), where)
	return err
}

type progressStream = interface {
	Recv() (*daemonv1.SnapshotProgress, error)
}

// followProgress shows how far a call is, and returns its last message.
func (o *options) followProgress(cmd *cobra.Command, call func(context.Context, daemonv1.TTRPCDaemonClient) (progressStream, error)) (*daemonv1.SnapshotProgress, error) {
	ctx, cancel := o.deadline(cmd.Context(), 6*time.Hour)
	defer cancel()
	shown := o.shown(cmd)
	defer shown.end()
	var last *daemonv1.SnapshotProgress
	err := stream(ctx, o, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.SnapshotProgress, error)
	}, error) {
		return call(ctx, c)
	}, func(m *daemonv1.SnapshotProgress) (bool, error) {
		last = m
		shown.line("%s of %s", humanBytes(m.GetDoneBytes()), humanBytes(m.GetAllBytes()))
		return m.GetGeneration() != nil, nil
	})
	return last, err
}

// exportLocal copies the node's own snapshot.
func (o *options) exportLocal(cmd *cobra.Command, name, dir string) error {
	namespace, id, ok := strings.Cut(name, "/")
	if !ok {
		return usageError{errors.New("with --local the workload is named NAMESPACE/ID")}
	}
	data := o.dataDir
	if data == "" {
		cfg, err := config.Load(config.Input{File: o.config})
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		data = cfg.DataDir
	}
	ctx, cancel := o.deadline(cmd.Context(), time.Hour)
	defer cancel()
	found, err := tier.Inspect(localDir(data, namespace, id))
	s := found.Snapshot
	if s == nil {
		s = found.Kept
	}
	if s == nil {
		return &missingError{fmt.Sprintf("this node has no snapshot of %s: %v", node.Key{Namespace: namespace, ID: id}, errors.Join(err, found.Problem))}
	}
	err = withNewDir(dir, func() error { return s.Export(ctx, dir) })
	if err != nil {
		return fmt.Errorf("%w (one that is replaced meanwhile can't be read to its end: try again)", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "snapshot %d of %s is in %s: it holds memory and environment in clear\n", s.Sequence(), name, dir)
	return err
}

// localDir is where the snapshots of a container are: of its id, or of the identity that it had.
func localDir(data, namespace, id string) string {
	dirs, _ := tier.List(data)
	for _, dir := range dirs {
		if h, err := tier.ReadHead(dir); err == nil && h.Namespace == namespace && h.ID == id {
			return dir
		}
	}
	return tier.DirFor(data, namespace, id, "")
}

func (o *options) importSnapshot(cmd *cobra.Command, dir, name string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	req := &daemonv1.ImportSnapshotRequest{Name: name, Directory: ofDescriptor(d)}
	last, err := o.followProgress(cmd, func(ctx context.Context, c daemonv1.TTRPCDaemonClient) (progressStream, error) {
		return c.ImportSnapshot(ctx, req)
	})
	if err != nil {
		return err
	}
	g := last.GetGeneration()
	return o.answer(cmd, last, "it is snapshot %d of %s in the store (%s)", g.GetSequence(), last.GetName(), humanBytes(g.GetImageBytes()))
}

// unpack writes the files of an archive into a new directory beside it.
func unpack(ctx context.Context, path string) (dir string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if dir, err = os.MkdirTemp(filepath.Dir(path), ".import-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for in := tar.NewReader(f); ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return dir, nil
		}
		if err != nil {
			return "", fmt.Errorf("%s is no archive that was exported: %w", path, err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir && strings.Trim(name, "./") == "" {
			continue
		}
		if h.Typeflag != tar.TypeReg || name != filepath.Base(name) || name == ".." {
			return "", fmt.Errorf("%s is no archive that was exported: it has %q", path, h.Name)
		}
		if err := writeNew(filepath.Join(dir, name), in); err != nil {
			return "", err
		}
	}
}

func writeNew(path string, from io.Reader) error {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

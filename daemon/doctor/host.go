package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	hostcontainerd "github.com/hibernate-runtime/hibernate/daemon/containerd"
	"github.com/hibernate-runtime/hibernate/internal/config"
)

// Host is where checks look. NewHost fills it in; tests replace what they like.
type Host struct {
	// Root comes before each path that is read; "" for the machine's own.
	Root string
	// UID is the owner that files must have.
	UID int
	// Config is the node's; Default where it can't be read, and ConfigErr says why. ConfigFile need not exist.
	Config     *config.Config
	ConfigErr  error
	ConfigFile string
	// Version is this build's, Workloads how many the node has.
	Version   string
	Workloads int
	// Find finds a program by a path, or by a name beside this one and in PATH. Exec runs one, and returns its standard output.
	Find func(name string) (path string, err error)
	Exec func(ctx context.Context, path string, args ...string) (string, error)
	// Free is what root may still write below a directory, in bytes.
	Free func(dir string) (free uint64, err error)
	// Device is the number of the device that a directory's files are on.
	Device func(dir string) (major, minor uint32, err error)
	// Network tries what the gate needs of the kernel.
	Network func(ctx context.Context) error
	// Synchronised says whether the kernel's clock is.
	Synchronised func() (bool, error)
	// Daemon asks hibernated. The error says why it doesn't answer.
	Daemon func(ctx context.Context) (*daemonv1.VersionResponse, error)
	// Containerd asks containerd at a socket for its version.
	Containerd func(ctx context.Context, socket string) (string, error)
}

// NewHost is this machine. The caller adds Daemon, Version and Workloads.
func NewHost(file string) *Host {
	cfg, err := config.Load(config.Input{File: file})
	if err == nil {
		err = cfg.CheckStore()
	}
	if cfg == nil {
		cfg = config.Default()
	}
	return &Host{
		Config: cfg, ConfigErr: err, ConfigFile: file, Find: config.FindProgram, Exec: run, Free: free, Device: device, Network: tryNetwork,
		Synchronised: synchronised, Containerd: hostcontainerd.Version,
	}
}

// path is where a path of the machine is read.
func (h *Host) path(name string) string { return filepath.Join(h.Root, name) }

// text reads a small file, without the blanks around it.
func (h *Host) text(name string) (string, error) {
	data, err := os.ReadFile(h.path(name))
	return string(bytes.TrimSpace(data)), err
}

// number reads a file that has one.
func (h *Host) number(name string) (uint64, error) {
	text, err := h.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s has %q, which is no number", name, text)
	}
	return n, nil
}

// exists reports whether a path is there.
func (h *Host) exists(name string) bool {
	_, err := os.Lstat(h.path(name))
	return !errors.Is(err, fs.ErrNotExist)
}

func run(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

func free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return st.Bfree * uint64(st.Bsize), nil
}

func device(dir string) (major, minor uint32, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", dir, err)
	}
	return unix.Major(st.Dev), unix.Minor(st.Dev), nil
}

func synchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("adjtimex: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}

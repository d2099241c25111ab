package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// SidecarName is the name that the program must have for runsc to find it.
const SidecarName = "checkpointgofer"

// sidecarDirEnv names the directory in which runsc looks for its sidecars, gVisor's runsc/gvisorbinaries.
const sidecarDirEnv = "GVISOR_SIDECAR_BINARIES_DIR"

// optionsFile, in an image's directory, has runsc start the sidecar instead of opening the image's files itself.
const optionsFile = "gcs_opts.json"

// Sidecar is the program that serves an image's files to a sandbox while it runs already. It speaks gVisor's internal
// protocol, so it serves the one version of runsc that it was built with.
type Sidecar struct {
	Path     string // absolute; its base name is SidecarName
	CacheDir string // as of a Client
	Runner   Runner // nil: ExecRunner

	mu      sync.Mutex // guards the fields below
	key     string
	version string
}

// Version is that of the runsc which the program serves. It is asked once for each (device, inode, size, mtime), and once a
// node when CacheDir is set. ErrMissing when it can't be executed.
func (s *Sidecar) Version(ctx context.Context) (string, error) {
	info, err := os.Stat(s.Path)
	if err != nil {
		return "", &Error{Command: SidecarName, Message: err.Error(), Kind: ErrMissing}
	}
	st := info.Sys().(*syscall.Stat_t)
	key := fmt.Sprintf("%x-%x-%x-%x", st.Dev, st.Ino, info.Size(), info.ModTime().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == key {
		return s.version, nil
	}
	cache := Client{CacheDir: s.CacheDir}
	version, err := cache.onceANode(SidecarName+"-"+key+".version", func() (string, error) { return s.askVersion(ctx) })
	if err == nil {
		s.key, s.version = key, version
	}
	return version, err
}

func (s *Sidecar) askVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeouts{}.query(), ErrDeadline)
	defer cancel()
	out, err := memfile("version")
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, s.Path, "-version")
	cmd.Stdout = out
	var runner Runner = ExecRunner{}
	if s.Runner != nil {
		runner = s.Runner
	}
	if err := runner.Run(ctx, cmd); err != nil {
		return "", fmt.Errorf("%s -version: %w", s.Path, err)
	}
	return string(bytes.TrimSpace(content(out))), nil
}

// env is what runsc needs to find the program.
func (s *Sidecar) env() []string {
	return append(os.Environ(), sidecarDirEnv+"="+filepath.Dir(s.Path))
}

// SidecarFile is one file of an image, with the CRC32C of each of its chunks.
type SidecarFile struct {
	Name   string
	Size   int64 // bytes
	CRC32C []uint32
}

// SidecarOptions say what the sidecar may read. sidecar/gofer/options.go reads them: change both together.
type SidecarOptions struct {
	Version   int    // set by StartLoading
	Status    string // set by StartLoading
	Directory string // absolute, with the files
	ChunkSize int64  // bytes; a multiple of 4096
	Parallel  int    // reads under way at once; each has a buffer of a chunk
	Files     []SidecarFile
	First     []int  `json:",omitempty"` // chunks of pages.img that will probably be asked for first, in order; may be wrong
	Record    string // set by StartLoading

	Remote *SidecarRemote `json:",omitempty"` // where the same files are, too; nil: nowhere
}

// SidecarRemote is a place that the node's daemon serves, package api/pages. A chunk that is wrong in the directory, or can't be read,
// is read from there.
type SidecarRemote struct {
	Socket     string // absolute
	Ticket     string
	PatienceMs int64    // how long a daemon that is gone, or can't answer, is asked again
	Only       []string `json:",omitempty"` // files that are not in the directory
}

// sidecarOptionsVersion is of their format.
const sidecarOptionsVersion = 1

func (o SidecarOptions) write(dir, status string) error {
	o.Version, o.Status, o.Record = sidecarOptionsVersion, status, filepath.Join(dir, recordFile)
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, optionsFile), data, 0o600)
}

package gofer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

// optionsVersion is of the options' format. The shim writes it, runsc.SidecarOptions there: change both together.
const optionsVersion = 1

// options are the content of gcs_opts.json: which files may be read, where they are, and what they are.
type options struct {
	Version   int
	Status    string // path of a FIFO that gets the events; "" for none
	Directory string // where the files are: the local tier
	ChunkSize int64  // bytes
	Parallel  int    // reads under way at once; fewer where there are fewer processors
	Files     []pages.File

	First  []int  // chunks of pages.img that the last wake asked for first, in that order; a hint, which may be wrong
	Record string // path of a file that gets what this one asks for out of turn; "" for none

	Remote *remote `json:",omitempty"` // the same snapshot in the durable tier; nil: it isn't there
}

// remote is where the node's daemon serves a snapshot.
type remote struct {
	Socket     string
	Ticket     string
	PatienceMs int64
	Only       []string // files that it alone has: they are not to be looked for in Directory
}

// source is where the files are read.
func (o options) source(place func(directory string) pages.Source, mended func(file string, chunk int, why error)) pages.Source {
	if o.Remote == nil {
		return place(o.Directory)
	}
	r := &pages.Remote{
		Socket: o.Remote.Socket, Ticket: o.Remote.Ticket, Patience: time.Duration(o.Remote.PatienceMs) * time.Millisecond,
		Ahead: slices.Contains(o.Remote.Only, checkpointfiles.PagesFileName),
	}
	return pages.Tiers{First: place(o.Directory), Second: r, SecondOnly: o.Remote.Only, Mended: mended}
}

const (
	maxParallel  = 64
	maxChunkSize = 16 << 20
)

func readOptions(r io.Reader) (options, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return options{}, fmt.Errorf("options: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var o options
	if err := dec.Decode(&o); err != nil {
		return options{}, fmt.Errorf("options: %w", err)
	}
	return o, o.check()
}

func (o options) check() error {
	switch {
	case o.Version != optionsVersion:
		return fmt.Errorf("options: version %d, want %d: the shim is of another release than this program", o.Version, optionsVersion)
	case !filepath.IsAbs(o.Directory):
		return fmt.Errorf("options: directory %q is not an absolute path", o.Directory)
	case o.ChunkSize < 4096 || o.ChunkSize > maxChunkSize || o.ChunkSize%4096 != 0:
		return fmt.Errorf("options: chunk size %d", o.ChunkSize)
	case o.Parallel < 1 || o.Parallel > maxParallel:
		return fmt.Errorf("options: %d reads at once", o.Parallel)
	case o.Remote != nil && (!filepath.IsAbs(o.Remote.Socket) || o.Remote.PatienceMs < 0):
		return fmt.Errorf("options: socket %q, patience of %d ms", o.Remote.Socket, o.Remote.PatienceMs)
	case len(o.Files) == 0:
		return errors.New("options: no files")
	}
	return nil
}

// first are the chunks of the hint that a file has, each once.
func (o options) first(f pages.File) []int {
	var out []int
	seen := map[int]bool{}
	for _, c := range o.First {
		if c >= 0 && c < len(f.CRC32C) && !seen[c] && len(out) < maxTouches {
			out, seen[c] = append(out, c), true
		}
	}
	return out
}

// file finds what is known of a file.
func (o options) file(name string) (pages.File, error) {
	for _, f := range o.Files {
		if f.Name == name {
			return f, nil
		}
	}
	return pages.File{}, fmt.Errorf("%q is none of the files to serve", name)
}

package runsc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Shelf is a directory in which several runscs are kept side by side, so that an upgrade strands no snapshot: each in a directory of its
// own that has its digest for a name, or its version, with the sidecar that serves it beside it.
//
//	DIR/<hex SHA-256 of the binary, or version>/{runsc, checkpointgofer}
type Shelf struct {
	Dir      string // "": there is none
	CacheDir string // as of a Client
	Runner   Runner // nil: ExecRunner
}

// Kept is one runsc.
type Kept struct {
	Path            string // of the binary
	Version, SHA256 string
	Sidecar         string // "": there is none beside it
}

// binaryName is that of a runsc on a shelf.
const binaryName = "runsc"

// Place is where a runsc of that digest belongs.
func (s Shelf) Place(digest string) string { return filepath.Join(s.Dir, digest, binaryName) }

// Find gives the runsc of that digest, wherever its directory's name allows it to be: the digest, or the version. What is there under such
// a name, and is another one, is none. ErrMissing says what was found instead.
func (s Shelf) Find(version, digest string) (Kept, error) {
	if s.Dir == "" || digest == "" {
		return Kept{}, &Error{Command: "binary", Message: "no directory of runscs", Kind: ErrMissing}
	}
	var others []string
	for _, name := range []string{digest, version} {
		if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
			continue
		}
		path := filepath.Join(s.Dir, name, binaryName)
		c := &Client{Path: path, CacheDir: s.CacheDir, Runner: s.Runner}
		found, err := c.Digest()
		if err == nil && found == digest {
			return Kept{Path: path, Version: version, SHA256: digest, Sidecar: sidecarBeside(path)}, nil
		}
		if err == nil {
			others = append(others, fmt.Sprintf("%s is another one (sha256 %s)", path, found))
		}
	}
	if others == nil {
		others = []string{s.Place(digest) + " is not there"}
	}
	return Kept{}, &Error{Command: "binary", Message: strings.Join(others, "; "), Kind: ErrMissing}
}

// All gives those that can be used, by their directories' names. A shelf that isn't there is empty; the error is of what can't be used.
func (s Shelf) All(ctx context.Context) (all []Kept, err error) {
	if s.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the directory of runscs: %w", err)
	}
	err = nil
	for _, e := range entries {
		path := filepath.Join(s.Dir, e.Name(), binaryName)
		if _, serr := os.Stat(path); strings.HasPrefix(e.Name(), ".") || serr != nil {
			continue
		}
		k, kerr := Describe(ctx, &Client{Path: path, CacheDir: s.CacheDir, Runner: s.Runner})
		if kerr != nil {
			err = errors.Join(err, kerr)
			continue
		}
		if !slices.ContainsFunc(all, func(o Kept) bool { return o.SHA256 == k.SHA256 }) {
			all = append(all, k)
		}
	}
	return all, err
}

// Describe says what a client runs.
func Describe(ctx context.Context, c *Client) (k Kept, err error) {
	k.Path = c.Binary()
	if k.Version, err = c.Version(ctx); err == nil {
		k.SHA256, err = c.Digest()
	}
	if err != nil {
		return k, fmt.Errorf("%s: %w", k.Path, err)
	}
	k.Sidecar = sidecarBeside(k.Path)
	return k, nil
}

// sidecarBeside is the path of the sidecar in a runsc's directory; "" where there is none.
func sidecarBeside(path string) string {
	side := filepath.Join(filepath.Dir(path), SidecarName)
	if info, err := os.Stat(side); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return side
}

// SidecarBeside is the path of the sidecar in the binary's directory; "" where there is none.
func (c *Client) SidecarBeside() string { return sidecarBeside(c.Binary()) }

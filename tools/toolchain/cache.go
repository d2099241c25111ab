package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// A cache holds one complete directory for each tool and digest.
type cache struct{ root string }

func openCache() (*cache, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	root := filepath.Join(user, "hibernate", "tools")
	return &cache{root: root}, os.MkdirAll(root, 0o755)
}

// ensure returns the tool's directory, and whether and how long it was built just now. A directory appears by rename
// when all its programs are there, so a build that was cut off leaves nothing that could be taken for a tool.
func (c *cache) ensure(ctx context.Context, t tool, jobs int) (dir string, fresh bool, took time.Duration, err error) {
	key, err := digest(t)
	if err != nil {
		return "", false, 0, err
	}
	dir = filepath.Join(c.root, t.name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, false, 0, nil
	}
	began := time.Now()
	tmp, err := os.MkdirTemp(c.root, ".building-")
	if err != nil {
		return "", false, 0, err
	}
	defer os.RemoveAll(tmp)
	if err := build(ctx, t, tmp, jobs); err != nil {
		return "", false, 0, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", false, 0, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, there := os.Stat(dir); there == nil { // another build was first
			return dir, false, 0, nil
		}
		return "", false, 0, err
	}
	return dir, true, time.Since(began), nil
}

// digest is over all that decides the programs' bytes.
func digest(t tool) (string, error) {
	files := []string{t.modfile(), t.sumfile()}
	if t.own {
		files = append(files, filepath.Join(t.dir(), "main.go"))
	}
	h := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d\n%s\n", len(b), b)
	}
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, t.packages, t.stamp, buildFlags)
	if t.ldflags != "" {
		fmt.Fprintln(h, t.ldflags)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// link points links/<subdir>/<program> at the cached programs, replacing older links.
func link(t tool, dir, links string) error {
	into := filepath.Join(links, t.subdir)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for name, program := range t.programs() {
		at, target := filepath.Join(into, name), filepath.Join(dir, program)
		if old, err := os.Readlink(at); err == nil && old == target {
			continue
		}
		if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.Symlink(target, at); err != nil {
			return err
		}
	}
	return nil
}

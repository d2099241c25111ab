package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// aptDeadline bounds one call of apt-get; the largest fetches about 20 MiB.
const aptDeadline = 5 * time.Minute

// A closure is a set of packages with all that they depend on, as names of archive files: <package>_<version>_<arch>.deb.
type closure []string

// resolve asks apt for the closure of packages, less what is omitted and not to be kept, and brings apt's lists up to date when it can't say.
func resolve(ctx context.Context, packages, keep []string) (closure, error) {
	out, err := install(ctx, "", packages, "--print-uris")
	if err != nil {
		if _, err := apt(ctx, "update"); err != nil {
			return nil, err
		}
		if out, err = install(ctx, "", packages, "--print-uris"); err != nil {
			return nil, err
		}
	}
	debs := parseURIs(out, keep)
	if len(debs) == 0 {
		return nil, fmt.Errorf("apt-get names no archive for %s", strings.Join(packages, " "))
	}
	return debs, nil
}

// parseURIs reads lines of the form 'http://…' NAME SIZE HASH.
func parseURIs(out []byte, keep []string) closure {
	var debs closure
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[0], "'") || !strings.HasSuffix(f[1], ".deb") || omitted(f[1], keep) {
			continue
		}
		debs = append(debs, f[1])
	}
	slices.Sort(debs)
	return debs
}

// omitted reports whether a package's archive is left out of an image that keeps some.
func omitted(deb string, keep []string) bool {
	name, _, _ := strings.Cut(deb, "_")
	return !slices.Contains(keep, name) && slices.ContainsFunc(omit, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}

// errStale is a failure to fetch: apt's lists may be too old, and name archives that are gone.
var errStale = errors.New("fetch packages")

// fetch puts the closure's archives into dir and returns their paths in the closure's order. apt checks their signatures.
func fetch(ctx context.Context, packages []string, debs closure, dir string) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	if _, err := install(ctx, dir, packages, "--download-only"); err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	var paths []string
	for _, deb := range debs {
		p := filepath.Join(dir, deb)
		if _, err := os.Stat(p); err != nil {
			return nil, fmt.Errorf("%s was resolved but not fetched: %w", unescape(deb), err)
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// install runs apt-get install as on a machine where nothing is installed. It never installs: how is a flag that stops it.
func install(ctx context.Context, archives string, packages []string, how string) ([]byte, error) {
	args := []string{
		how, "-q", "-y", "--no-install-recommends",
		"-o", "Dir::State::status=/dev/null",
		"-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=true",
	}
	if archives != "" {
		args = append(args, "-o", "Dir::Cache::archives="+archives)
	}
	args = append(args, "install")
	return apt(ctx, append(args, packages...)...)
}

func apt(ctx context.Context, args ...string) ([]byte, error) {
	return output(ctx, aptDeadline, "apt-get", args...)
}

// output runs a program and returns what it printed; its errors carry what it complained of.
func output(ctx context.Context, deadline time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), errors.Join(err, ctx.Err()), bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func unescape(deb string) string {
	if s, err := url.PathUnescape(deb); err == nil {
		return s
	}
	return deb
}

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// format counts the changes of this program that change its archives.
const format = 3

// ensure returns the recipe's archive in the cache, packing it when it is not there; with new lists of packages when the
// present ones turn out to be too old.
func ensure(ctx context.Context, r recipe) (string, error) {
	archive, err := ensureOnce(ctx, r)
	if !errors.Is(err, errStale) {
		return archive, err
	}
	if _, err := apt(ctx, "update"); err != nil {
		return "", err
	}
	return ensureOnce(ctx, r)
}

func ensureOnce(ctx context.Context, r recipe) (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(user, "hibernate", "images")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	packages := append([]string{"busybox-static"}, r.packages...)
	debs, err := resolve(ctx, packages, r.keep)
	if err != nil {
		return "", err
	}
	archive := filepath.Join(cache, r.name+"-"+digest(r, debs)+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	tmp, err := os.MkdirTemp(cache, ".packing-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	began := time.Now()
	packed, err := pack(ctx, r, packages, debs, tmp)
	if err != nil {
		return "", err
	}
	fmt.Printf("packed image %s in %s\n", r.name, time.Since(began).Round(100*time.Millisecond))
	return archive, os.Rename(packed, archive)
}

// pack fetches, merges and writes the archive into dir.
func pack(ctx context.Context, r recipe, packages []string, debs closure, dir string) (string, error) {
	paths, err := fetch(ctx, packages, debs, filepath.Join(dir, "debs"))
	if err != nil {
		return "", err
	}
	t, err := assemble(ctx, r, paths)
	if err != nil {
		return "", err
	}
	img, err := image(r, t)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "image.tar")
	return file, writeArchive(file, reference(r.name), img)
}

// assemble merges packages, the recipe's files and busybox's links, and checks that every library is there.
func assemble(ctx context.Context, r recipe, debs []string) (tree, error) {
	t := newTree()
	for _, deb := range debs {
		if err := t.unpack(ctx, deb); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
	}
	for _, f := range r.files {
		t.file(f.path, f.mode, f.data)
	}
	for _, a := range applets {
		if at := "usr/bin/" + a; t[at] == nil {
			t.symlink(at, "busybox")
		}
	}
	return t, checkLibraries(t)
}

// digest is over all that decides an archive's contents.
func digest(r recipe, debs closure) string {
	h := sha256.New()
	fmt.Fprintln(h, format, debs, omit, applets, skipped, r.name, r.packages, r.entrypoint, r.cmd, r.env)
	for _, f := range r.files {
		fmt.Fprintln(h, f.path, f.mode, len(f.data))
		h.Write(f.data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// link points dir/name at the archive, replacing an older link.
func link(archive, dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at := filepath.Join(dir, name)
	if old, err := os.Readlink(at); err == nil && old == archive {
		return nil
	}
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.Symlink(archive, at)
}

package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// ErrPath is for a cgroupsPath that names no group of its own.
var ErrPath = errors.New("bad cgroupsPath")

// cleanPath turns linux.cgroupsPath into a directory below the hierarchy's root.
func cleanPath(path string) (string, error) {
	if parts := strings.Split(path, ":"); len(parts) == 3 {
		return systemdPath(path, parts[0], parts[1], parts[2])
	}
	clean := filepath.Join("/", path)
	if clean == "/" {
		return "", fmt.Errorf("%w: %q is the root", ErrPath, path)
	}
	return clean, nil
}

// systemdPath gives the directory of a scope: each dash in a slice's name is a
// level, so that a-b.slice lies in a.slice.
func systemdPath(path, slice, prefix, name string) (string, error) {
	if slice == "" {
		slice = "system.slice"
	}
	base, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.ContainsAny(slice+prefix+name, "/") || name == "" {
		return "", fmt.Errorf("%w: %q: want slice:prefix:name", ErrPath, path)
	}
	dir := "/"
	if base != "-" {
		words := strings.Split(base, "-")
		for i, word := range words {
			if word == "" {
				return "", fmt.Errorf("%w: %q: bad slice", ErrPath, path)
			}
			dir = filepath.Join(dir, strings.Join(words[:i+1], "-")+".slice")
		}
	}
	switch {
	case strings.HasSuffix(name, ".slice"):
		return filepath.Join(dir, name), nil
	case prefix != "":
		name = prefix + "-" + name
	}
	return filepath.Join(dir, name+".scope"), nil
}

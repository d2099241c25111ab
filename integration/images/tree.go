package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// A tree is the contents of a root file system, by path without a leading slash.
type tree map[string]*node

type node struct {
	header tar.Header
	data   []byte
}

// epoch is the time of every file, so that the same contents are the same image.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// merged are the directories that Debian keeps below /usr, with a link in their old place.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// skipped is what a container has no use for.
var skipped = []string{
	"usr/share/bash-completion", "usr/share/bug", "usr/share/doc", "usr/share/doc-base", "usr/share/info",
	"usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/pixmaps", "usr/lib/systemd", "usr/lib/x86_64-linux-gnu/gconv",
	"etc/init.d", "etc/logrotate.d", "etc/ufw", "var/cache", "var/lib/dpkg",
}

// newTree is an empty root: the usual directories, and the files that a C library expects.
func newTree() tree {
	t := tree{}
	for _, d := range []string{"dev", "etc", "proc", "root", "run", "srv", "sys", "usr", "var", "var/log"} {
		t.dir(d, 0o755)
	}
	t.dir("tmp", 0o1777)
	t.dir("var/tmp", 0o1777)
	for _, d := range merged {
		t.dir("usr/"+d, 0o755)
		t.symlink(d, "usr/"+d)
	}
	t.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nsys:x:3:3:sys:/dev:/bin/false\nwww-data:x:33:33:www-data:/srv/www:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	t.file("etc/group", 0o644, []byte("root:x:0:\nsys:x:3:\nwww-data:x:33:\nnogroup:x:65534:\n"))
	t.file("etc/hosts", 0o644, []byte("127.0.0.1\tlocalhost\n::1\tlocalhost\n"))
	t.file("etc/nsswitch.conf", 0o644, []byte("passwd: files\ngroup: files\nhosts: files dns\n"))
	return t
}

func (t tree) dir(name string, mode int64) {
	t[name] = &node{header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: epoch}}
}

func (t tree) symlink(name, target string) {
	t[name] = &node{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: epoch}}
}

// file adds a regular file and the directories above it.
func (t tree) file(name string, mode int64, data []byte) {
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		if t[d] == nil {
			t.dir(d, 0o755)
		}
	}
	t[name] = &node{
		header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: epoch},
		data:   data,
	}
}

// unpack adds the contents of a Debian package's archive.
func (t tree) unpack(ctx context.Context, deb string) error {
	contents, err := output(ctx, time.Minute, "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return err
	}
	return t.read(bytes.NewReader(contents))
}

// read adds the entries of a tar stream, at their places in a merged /usr.
func (t tree) read(r io.Reader) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.add(h, in); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func (t tree) add(h *tar.Header, contents io.Reader) error {
	name := place(h.Name)
	if name == "" || isSkipped(name) {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if t[name] == nil {
			t.dir(name, h.Mode&0o7777)
		}
	case tar.TypeSymlink:
		t.symlink(name, h.Linkname)
	case tar.TypeLink:
		original := t[place(h.Linkname)]
		if original == nil {
			return fmt.Errorf("hard link to %s, which is not there", h.Linkname)
		}
		t.file(name, original.header.Mode, original.data)
	case tar.TypeReg:
		data, err := io.ReadAll(contents)
		if err != nil {
			return err
		}
		t.file(name, h.Mode&0o7777, data)
	default:
		return fmt.Errorf("entry of type %q", h.Typeflag)
	}
	return nil
}

// place is where an entry of a package lies in a merged /usr; empty for the root itself.
func place(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(merged, top) {
		name = "usr/" + name
	}
	return name
}

func isSkipped(name string) bool {
	return slices.ContainsFunc(skipped, func(s string) bool { return name == s || strings.HasPrefix(name, s+"/") })
}

// write puts the tree out as a tar stream, sorted, parents first.
func (t tree) write(w io.Writer) error {
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		n := t[name]
		h := n.header
		if err := out.WriteHeader(&h); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := out.Write(n.data); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return out.Close()
}

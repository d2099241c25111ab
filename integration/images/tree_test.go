package main

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

// archiveOf is a tar stream of the headers; a regular file holds its own name.
func archiveOf(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, h.Name)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestReadMergesUsr(t *testing.T) {
	root := newTree()
	err := root.read(archiveOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./bin/dash", Typeflag: tar.TypeReg, Mode: 0o4755},
		tar.Header{Name: "./usr/bin/dash2", Typeflag: tar.TypeLink, Linkname: "./bin/dash"},
		tar.Header{Name: "./lib/x/liba.so.1", Typeflag: tar.TypeSymlink, Linkname: "liba.so.1.2"},
		tar.Header{Name: "./usr/share/doc/dash/copyright", Typeflag: tar.TypeReg},
	))
	if err != nil {
		t.Fatal(err)
	}
	if n := root["usr/bin/dash"]; n == nil || string(n.data) != "./bin/dash" || n.header.Mode != 0o4755 {
		t.Errorf("usr/bin/dash = %+v; want the file from ./bin with its mode", n)
	}
	if n := root["usr/bin/dash2"]; n == nil || string(n.data) != "./bin/dash" {
		t.Errorf("usr/bin/dash2 = %+v; want the hard link's contents", n)
	}
	if n := root["usr/lib/x/liba.so.1"]; n == nil || n.header.Linkname != "liba.so.1.2" {
		t.Errorf("usr/lib/x/liba.so.1 = %+v; want the symbolic link", n)
	}
	for name := range root {
		if strings.HasPrefix(name, "usr/share/doc") {
			t.Errorf("%s was not skipped", name)
		}
	}
	if n := root["bin"]; n == nil || n.header.Linkname != "usr/bin" {
		t.Errorf("bin = %+v; want a link to usr/bin", n)
	}
}

func TestWriteIsSortedAndRepeatable(t *testing.T) {
	write := func() []byte {
		root := newTree()
		root.file("b/c/d", 0o644, []byte("d"))
		root.file("a", 0o600, []byte("a"))
		var out bytes.Buffer
		if err := root.write(&out); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	first := write()
	if !bytes.Equal(first, write()) {
		t.Error("the same tree gave two different archives")
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(first)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, strings.TrimSuffix(h.Name, "/"))
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "b/c") {
		t.Errorf("names = %q; want them sorted, with the directories of files", names)
	}
}

func TestOmitted(t *testing.T) {
	for deb, want := range map[string]bool{
		"perl-base_5.36_amd64.deb": true, "libpam0g_1.5_amd64.deb": true, "gcc-12-base_12_amd64.deb": true,
		"libc6_2.36_amd64.deb": false, "passwd_4.13_amd64.deb": false, "redis-server_5%3a7.0_amd64.deb": false, "libpcre2-8-0_10_amd64.deb": false,
	} {
		if got := omitted(deb, []string{"passwd"}); got != want {
			t.Errorf("omitted(%s) = %v; want %v", deb, got, want)
		}
	}
}

func TestParseURIs(t *testing.T) {
	out := "Reading package lists...\n'http://x/b_2_amd64.deb' b_2_amd64.deb 20 SHA256:00\n'http://x/a_1%3a1_all.deb' a_1%3a1_all.deb 10\n'http://x/tar_1_amd64.deb' tar_1_amd64.deb 1\n"
	if got, want := parseURIs([]byte(out), nil), (closure{"a_1%3a1_all.deb", "b_2_amd64.deb"}); !slices.Equal(got, want) {
		t.Errorf("parseURIs = %q; want %q, sorted and without what is omitted", got, want)
	}
}

func TestCheckLibrariesIgnoresScripts(t *testing.T) {
	root := newTree()
	root.file("usr/bin/script", 0o755, []byte("#!/bin/sh\n"))
	if err := checkLibraries(root); err != nil {
		t.Error(err)
	}
}

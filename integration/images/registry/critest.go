package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// critest 1.37 asks for these, by names that can't be changed; and a node for the image of sandboxes.
const (
	sandboxImage = "hibernate.test/pause:1"

	e2eImages = "registry.k8s.io/e2e-test-images/"
	criImages = "gcr.io/k8s-staging-cri-tools/"
)

// addCritest puts all images that critest asks for into the registry: made of busybox, from the archive of the image of
// that name, and of the stand-in for the servers.
func addCritest(ctx context.Context, handler http.Handler, busybox, standin string) (hosts []string, err error) {
	made, err := critestImages(ctx, busybox, standin)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for reference, img := range made {
		ref, err := name.NewTag(reference)
		if err == nil {
			err = remote.Write(ref, img, remote.WithTransport(direct{handler}))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", reference, err)
		}
		if host := ref.RegistryStr(); !seen[host] {
			seen[host], hosts = true, append(hosts, host)
		}
	}
	return hosts, nil
}

// critestImages makes them, by reference.
func critestImages(ctx context.Context, busybox, standin string) (map[string]v1.Image, error) {
	program, err := os.ReadFile(standin)
	if err != nil {
		return nil, err
	}
	base, err := critestBase(ctx, busybox)
	if err != nil {
		return nil, err
	}
	m := &maker{base: base}
	server := entry{"usr/bin/nginx", 0o755, program, ""}
	// Tests look for these words in the command line of what should, or should not, be process 1.
	web := func(port string) v1.Config { return v1.Config{Cmd: []string{"nginx", "nginx: master process", port}} }
	as := func(user string) v1.Config { return v1.Config{Cmd: []string{"sh"}, User: user} }
	marked := func(mark string) v1.Image { return m.image(as(""), entry{"mark", 0o644, []byte(mark), ""}) }
	pause := func(files ...entry) v1.Image {
		return m.image(v1.Config{Cmd: []string{"pause"}}, append(files, entry{"usr/bin/pause", 0o755, program, ""})...)
	}
	tags, twice := marked("tags"), pause()
	all := map[string]v1.Image{
		e2eImages + "busybox:1.29-2":                              m.image(as("")),
		e2eImages + "nginx:1.14-2":                                m.image(web("80"), server),
		e2eImages + "httpd:2.4.39-4":                              m.image(web("80"), server, entry{"mark", 0o644, []byte("httpd"), ""}),
		e2eImages + "nonewprivs:1.3":                              m.image(v1.Config{Cmd: []string{"nnp"}}, entry{"usr/bin/nnp", 0o4755, program, ""}),
		criImages + "hostnet-nginx-" + runtime.GOARCH + ":latest": m.image(web("12003"), server),
		criImages + "test-image-user-uid:latest":                  m.image(as("1002")),
		criImages + "test-image-user-username:latest":             m.image(as("www-data")),
		criImages + "test-image-user-uid-group:latest":            m.image(as("1003:users")),
		criImages + "test-image-user-username-group:latest":       m.image(as("www-data:100")),
		criImages + "test-image-predefined-group:latest":          m.image(as("1000")),
		criImages + "test-image-latest:latest":                    marked("latest"),
		criImages + "test-image-tag:test":                         marked("test"),
		criImages + "test-image-tag:all":                          marked("all"),
		sandboxImage:                                              pause(entry{"mark", 0o644, nil, ""}), // another image than those whose names critest counts
		"registry.k8s.io/pause:3.9":                               twice,
		"k8s.gcr.io/pause:3.9":                                    twice,
	}
	for i := range 3 {
		all[fmt.Sprintf("%stest-image-%d:latest", criImages, i+1)] = marked(fmt.Sprint(i))
		all[fmt.Sprintf("%stest-image-tags:%d", criImages, i+1)] = tags
	}
	return all, m.err
}

// critestBase is busybox under all of its names, with the users and groups that tests know.
func critestBase(ctx context.Context, archive string) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "registry-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	img, err := open(archive, dir)
	if err != nil {
		return nil, err
	}
	names, layer, err := applets(ctx, img, dir)
	if err != nil {
		return nil, err
	}
	more := []entry{
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/srv:/bin/false\nnobody:x:65534:65534::/:/bin/false\ndefault-user:x:1000:1000::/home:/bin/sh\n"), ""},
		{"etc/group", 0o644, []byte("root:x:0:\nwww-data:x:33:\nusers:x:100:\nnogroup:x:65534:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"), ""},
		{"usr/bin/pgrep", 0o755, []byte(pgrep), ""}, // Debian's busybox has none
	}
	for _, name := range names {
		more = append(more, entry{"usr/bin/" + name, 0o777, nil, "busybox"})
	}
	start, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}})
	m := &maker{err: err}
	return m.append(start, layer, m.layer(more)), m.err
}

// pgrep finds processes by a part of their name.
const pgrep = `#!/bin/sh
found=1
for p in /proc/[0-9]*; do
	read -r name <"$p/comm" || continue
	case $name in *"$1"*) echo "${p#/proc/}"; found=0 ;; esac
done 2>/dev/null
exit $found
`

// applets are the names that the image's busybox knows, but those that the image has already; with all of the image's files as a layer.
func applets(ctx context.Context, img v1.Image, dir string) (names []string, layer v1.Layer, err error) {
	whole, err := io.ReadAll(mutate.Extract(img))
	if err != nil {
		return nil, nil, err
	}
	there, program := map[string]bool{}, filepath.Join(dir, "busybox")
	for in := tar.NewReader(bytes.NewReader(whole)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		there[filepath.Base(h.Name)] = true
		if h.Name != "usr/bin/busybox" {
			continue
		}
		data, err := io.ReadAll(in)
		if err == nil {
			err = os.WriteFile(program, data, 0o755)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("busybox of the image: %w", err)
	}
	for _, name := range strings.Fields(string(out)) {
		if !there[name] {
			names = append(names, name)
		}
	}
	layer, err = layerOf(whole)
	return names, layer, err
}

// layerOf is a layer of a tar archive.
func layerOf(archive []byte) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
}

// An entry is a file of a layer, or a link.
type entry struct {
	path string
	mode int64
	data []byte
	link string
}

// A maker makes images, and keeps the first error.
type maker struct {
	base v1.Image
	err  error
}

// image is the base with more files.
func (m *maker) image(config v1.Config, files ...entry) v1.Image {
	config.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
	img := m.base
	if len(files) > 0 {
		img = m.append(img, m.layer(files))
	}
	img, err := mutate.Config(img, config)
	m.keep(err)
	return img
}

func (m *maker) append(img v1.Image, layers ...v1.Layer) v1.Image {
	img, err := mutate.AppendLayers(img, layers...)
	m.keep(err)
	return img
}

func (m *maker) layer(files []entry) v1.Layer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		m.keep(w.WriteHeader(h))
		_, err := w.Write(f.data)
		m.keep(err)
	}
	m.keep(w.Close())
	layer, err := layerOf(b.Bytes())
	m.keep(err)
	return layer
}

func (m *maker) keep(err error) {
	if m.err == nil {
		m.err = err
	}
}

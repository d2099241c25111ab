package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// add puts an archive's image into the registry, and says what host its name has.
func add(handler http.Handler, reference, archive string) (string, error) {
	ref, err := name.NewTag(reference)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "registry-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	img, err := open(archive, dir)
	if err != nil {
		return "", err
	}
	return ref.RegistryStr(), remote.Write(ref, img, remote.WithTransport(direct{handler}))
}

// open unpacks an archive, which is a tar of an OCI layout with one image, into dir.
func open(archive, dir string) (v1.Image, error) {
	if err := unpack(archive, dir); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s has %d images, want one", archive, len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}

func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(root, h.Name, in); err != nil {
			return err
		}
	}
}

func write(root *os.Root, file string, contents io.Reader) (err error) {
	if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := root.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, contents)
	return err
}

// direct asks a handler without a network in between: what is pushed never looks for the host that its name has.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	d.ServeHTTP(answer, r)
	response := answer.Result()
	response.Request = r
	return response, nil
}

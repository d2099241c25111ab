package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// everyRegistry sends each pull of CRI's to the registry on the node's loopback, whatever registry the image's name has.
const everyRegistry = `[host."https://127.0.0.1"]
capabilities = ["pull", "resolve"]
skip_verify = true
`

// registries is the directory in which containerd looks for where CRI pulls from.
func (w *World) registries() string { return filepath.Join(w.Dir, "registries") }

// Registry has CRI pull every image from a registry on the node's loopback, which is prepared here and started by the caller.
// args are the registry's own (integration/images/registry).
func (w *World) Registry(args ...string) (*Program, error) {
	if err := checkFiles(w.root, "images", ".tools/registry"); err != nil {
		return nil, err
	}
	hosts := filepath.Join(w.registries(), "_default")
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(everyRegistry), 0o644); err != nil {
		return nil, err
	}
	ready := func(ctx context.Context) error {
		conn, err := w.DialNode(ctx, "tcp", "127.0.0.1:443")
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return w.program("registry", append([]string{"-cert", filepath.Join(w.Dir, "registry.pem")}, args...), ready), nil
}

// Image is the path of one of the archives of .tools/images.
func (w *World) Image(name string) (string, error) {
	file := filepath.Join(w.root, ".tools/images", name+".tar")
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("image %s: %w: run 'make images'", name, err)
	}
	return file, nil
}

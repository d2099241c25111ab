package harness

import (
	"fmt"
	"os"
	"path/filepath"
)

// Root is the top directory of the repository that the working directory is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "Makefile")); err == nil {
			if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
				return d, nil
			}
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside the repository", dir)
		}
	}
}

// A missing file names the target that makes it.
func checkTools(root string) error {
	return checkFiles(root, "tools", ".tools/containerd", ".tools/ctr", ".tools/runsc", ".tools/cni/bridge")
}

func checkPrograms(root string, names ...string) error {
	for i, n := range names {
		names[i] = filepath.Join("bin", n)
	}
	return checkFiles(root, "build", names...)
}

func checkFiles(root, target string, files ...string) error {
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			return fmt.Errorf("%s is missing: run 'make %s'", f, target)
		}
	}
	return nil
}

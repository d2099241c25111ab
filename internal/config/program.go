package config

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// RunscPath returns where the runsc program is. The error says where it was looked for.
func (c *Config) RunscPath() (string, error) { return FindProgram(c.Runsc) }

// HelperPath returns where hibernate-helper is. The error says where it was looked for.
func (c *Config) HelperPath() (string, error) { return FindProgram(c.Helper) }

// SidecarPath returns where the sidecar is: a path that is not absolute begins in the running program's directory.
func (c *Config) SidecarPath() (string, error) {
	path := c.Sidecar
	if !filepath.IsAbs(path) {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the sidecar: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), path)
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("find the sidecar: %w", err)
	}
	return path, nil
}

// RunscShelf returns the directory of runscs that are kept side by side: a path that is not absolute begins in the running program's
// directory. It need not exist.
func (c *Config) RunscShelf() string {
	if filepath.IsAbs(c.RunscDir) {
		return c.RunscDir
	}
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(self), c.RunscDir)
}

// FindProgram returns the absolute path of a program that is named by path, or by a name that is looked for beside
// the running program and then in PATH.
func FindProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return findProgram(name, filepath.Dir(self))
}

func findProgram(name, beside string) (string, error) {
	if filepath.IsAbs(name) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("find program: %w", err)
		}
		return path, nil
	}
	if path, err := exec.LookPath(filepath.Join(beside, name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find program %s: neither in %s nor in PATH: %w", name, beside, exec.ErrNotFound)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("find program %s: %w", name, err)
	}
	return path, nil
}

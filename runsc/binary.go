package runsc

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// binaryCache remembers facts about one file, by what identifies its content
// cheaply. It guards its fields itself.
type binaryCache struct {
	mu         sync.Mutex
	key        string
	digest     string
	version    string
	featuresOf string // key
	features   []string
}

// resolve gives the binary's path and a key that changes with its content.
func (c *Client) resolve() (path, key string, err error) {
	path, err = exec.LookPath(c.Binary())
	if err != nil {
		return "", "", &Error{Command: "binary", Message: err.Error(), Kind: ErrMissing}
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", "", &Error{Command: "binary", Message: err.Error(), Kind: ErrMissing}
	}
	st := info.Sys().(*syscall.Stat_t)
	key = fmt.Sprintf("%x-%x-%x-%x", st.Dev, st.Ino, info.Size(), info.ModTime().UnixNano())
	return path, key, nil
}

// cached returns *field for the present binary, filling it by get once.
func (c *Client) cached(field func(*binaryCache) *string, get func(path, key string) (string, error)) (string, error) {
	path, key, err := c.resolve()
	if err != nil {
		return "", err
	}
	c.binary.mu.Lock()
	defer c.binary.mu.Unlock()
	if c.binary.key != key {
		c.binary.key, c.binary.digest, c.binary.version = key, "", ""
	}
	value := field(&c.binary)
	if *value == "" {
		*value, err = get(path, key)
	}
	return *value, err
}

// Digest is the hex SHA-256 of the binary, computed once for each (device,
// inode, size, mtime), and once a node when CacheDir is set: the binary has
// tens of MiB.
func (c *Client) Digest() (string, error) {
	return c.cached(func(b *binaryCache) *string { return &b.digest }, c.digest)
}

func (c *Client) digest(path, key string) (string, error) {
	return c.onceANode(key+".sha256", func() (string, error) { return hashFile(path) })
}

// onceANode is what get returns, remembered in CacheDir, if any, under a name
// that changes with the binary.
func (c *Client) onceANode(name string, get func() (string, error)) (string, error) {
	file := filepath.Join(c.CacheDir, "runsc-"+name)
	if c.CacheDir != "" {
		if data, err := os.ReadFile(file); err == nil && len(data) > 0 {
			return string(data), nil
		}
	}
	value, err := get()
	if err == nil && c.CacheDir != "" {
		_ = writeWhole(file, value) // only a cache
	}
	return value, err
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("runsc binary: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeWhole makes a reader see all of the file or nothing.
func writeWhole(path, data string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".digest-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Version is the release that is stamped into the binary, as images carry it.
func (c *Client) Version(ctx context.Context) (string, error) {
	return c.cached(func(b *binaryCache) *string { return &b.version }, func(_, key string) (string, error) {
		return c.onceANode(key+".version", func() (string, error) { return c.askVersion(ctx) })
	})
}

func (c *Client) askVersion(ctx context.Context) (string, error) {
	out, err := c.run(ctx, call{command: "--version", timeout: c.Timeouts.query()})
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(line, "runsc version ")
	if !ok {
		return "", &Error{Command: "--version", Message: fmt.Sprintf("unexpected output %q", line), Kind: ErrMissing}
	}
	return version, nil
}

// bootID names the machine's run: on the next the CPU may be another. Without
// one, nothing that was remembered under its name is found.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return rand.Text()
	}
	return string(bytes.TrimSpace(id))
}

// CPUFeatures are those of this host that an image made here may depend on.
func (c *Client) CPUFeatures(ctx context.Context) ([]string, error) {
	_, key, err := c.resolve()
	if err != nil {
		return nil, err
	}
	c.binary.mu.Lock()
	features, same := c.binary.features, c.binary.featuresOf == key
	c.binary.mu.Unlock()
	if features != nil && same {
		return features, nil
	}
	list, err := c.onceANode(key+"-"+bootID()+".features", func() (string, error) {
		out, err := c.run(ctx, call{command: "cpu-features", timeout: c.Timeouts.query()})
		return strings.TrimSpace(string(out)), err
	})
	if err != nil {
		return nil, err
	}
	features = strings.Split(list, ",")
	c.binary.mu.Lock()
	c.binary.features, c.binary.featuresOf = features, key
	c.binary.mu.Unlock()
	return features, nil
}

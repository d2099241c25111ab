package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/cordon"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
)

// nearest is a directory, or the one above it that is there.
func (h *Host) nearest(dir string) string {
	for dir != "/" && dir != "." {
		if h.exists(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return h.path(dir)
}

func disk(_ context.Context, h *Host) Result {
	dir := h.Config.DataDir
	free, err := h.Free(h.nearest(dir))
	if err != nil {
		return untold(err)
	}
	least := h.Config.MinFreeDisk
	const means = "nothing goes to sleep: hibernations are refused as disk"
	do := "make room below " + dir + " (hibernatectl orphans, hibernatectl ls for the largest), or lower min-free-disk"
	switch {
	case free <= least:
		return problem(means, do, "%s has %s left, and min-free-disk is %s", dir, size(free), size(least))
	case free < 2*least+(1<<30):
		return warning(means+", when that is used up", do, "%s has %s left, and min-free-disk is %s", dir, size(free), size(least))
	}
	return ok("%s has %s left", dir, size(free))
}

func size(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func encryption(_ context.Context, h *Host) Result {
	dir := h.Config.DataDir
	major, minor, err := h.Device(h.nearest(dir))
	if err != nil {
		return untold(err)
	}
	const means = "who gets the disk, or a copy of it, reads the memory of all that sleeps, secrets included"
	const do = "put data-dir on a device of dm-crypt (LUKS), or on one that the cloud encrypts, and know who has its key"
	if major == 0 { // a file system without a device of its own: overlay, btrfs, tmpfs, network
		return warning(means, do, "%s lies on no block device of its own, so it can't be told whether it is encrypted", dir)
	}
	encrypted, names := h.crypt(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor), 0)
	if !encrypted {
		return warning(means, do, "%s lies on %s, and no dm-crypt is below it", dir, strings.Join(names, ", "))
	}
	return ok("%s lies on an encrypted device", dir)
}

// crypt looks for dm-crypt in a block device and in all that lie below it. names are the devices that end there.
func (h *Host) crypt(device string, depth int) (found bool, names []string) {
	const deepest = 8
	real, err := filepath.EvalSymlinks(h.path(device))
	if err != nil || depth > deepest {
		return false, []string{filepath.Base(device)}
	}
	if uuid, err := os.ReadFile(filepath.Join(real, "dm/uuid")); err == nil && strings.HasPrefix(string(uuid), "CRYPT-") {
		return true, nil
	}
	slaves, _ := os.ReadDir(filepath.Join(real, "slaves"))
	if len(slaves) == 0 {
		return false, []string{filepath.Base(real)}
	}
	found = true // all of them, or there is memory in clear on one
	for _, s := range slaves {
		below, of := h.crypt(strings.TrimPrefix(filepath.Join(real, "slaves", s.Name()), h.Root), depth+1)
		found, names = found && below, append(names, of...)
	}
	return found, names
}

// What others than root must not have: nothing at all, or nothing to write.
const (
	nothing     = 0o077
	noWrites    = 0o022
	worldWrites = 0o002
)

func permissions(_ context.Context, h *Host) Result {
	c := h.Config
	private := []string{
		c.RunDir, c.RegistrationSocket(), c.APISocket(), pages.Socket(c.RunDir), c.DataDir, filepath.Join(c.DataDir, ".durable"),
		filepath.Join(c.DataDir, ".durable/peer.key"), c.StoreKeyFile,
	}
	if filepath.IsAbs(c.StoreCredentials) {
		private = append(private, c.StoreCredentials)
	}
	for _, key := range c.StoreOlderKeys {
		if filepath.IsAbs(key) {
			private = append(private, key)
		}
	}
	public := []string{h.ConfigFile, filepath.Dir(h.ConfigFile)}
	for _, command := range append(slices.Clone(c.StoreOlderKeys), first(c.StoreKeyCommand)...) {
		if path := strings.TrimPrefix(command, config.CommandKeyPrefix); filepath.IsAbs(path) && path != command || slices.Contains(c.StoreKeyCommand, command) {
			public = append(public, path, filepath.Dir(path))
		}
	}
	var shared []string // others' programs may be there, too: a group may have the right to install some
	for _, name := range []string{shimProgram, c.Helper, c.Runsc} {
		if path, err := h.Find(name); err == nil {
			public, shared = append(public, path), append(shared, filepath.Dir(path))
		}
	}
	var wrong []string
	for _, list := range []struct {
		names     []string
		forbidden os.FileMode
	}{{private, nothing}, {public, noWrites}, {shared, worldWrites}} {
		for _, name := range list.names {
			if name == "" || name == "." {
				continue
			}
			if w := h.owned(name, list.forbidden); w != "" && !slices.Contains(wrong, w) {
				wrong = append(wrong, w)
			}
		}
	}
	if wrong != nil {
		return problem("others than root may read workloads' memory, steer them, or change what root's programs do", "as each says", "%s", strings.Join(wrong, "; "))
	}
	return ok("sockets, directories, configuration and keys are root's alone")
}

func first(words []string) []string { return words[:min(1, len(words))] }

func notes(_ context.Context, h *Host) Result {
	dirs := []string{h.path(h.Config.RunDir), h.path(h.Config.DataDir)}
	var told, means, do []string
	note, err := cordon.Read(dirs...)
	if note != nil {
		told, means, do = append(told, note.String()), append(means, "connections and packets wake nothing"), append(do, "hibernatectl uncordon")
	}
	frozen, e := freeze.Read(dirs...)
	for _, n := range frozen {
		told = append(told, n.String())
	}
	if len(frozen) > 0 {
		means, do = append(means, "what that names doesn't go to sleep by itself"), append(do, "hibernatectl unfreeze")
	}
	if err = errors.Join(err, e); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return untold(err)
	}
	if told != nil {
		return warning(strings.Join(means, "; "), strings.Join(do, ", ")+", when whoever left the note is done", "%s", strings.Join(told, "; "))
	}
	return ok("neither cordoned nor frozen")
}

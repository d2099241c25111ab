package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hibernate-runtime/hibernate/internal/undo"
)

// A *filestore* is the file in which a sandbox keeps what its container writes. It lies in the container's snapshot, where
// engines count it as the container's use of the disk.
const filestore = ".gvisor.filestore."

// removeFilestores takes away the filestores' names. A sandbox that runs has its file open and needs no name. One that was
// left in place would refuse the next create; and whoever compares the snapshot with its image, as engines do to
// checkpoint or commit a container that they have paused, would take it for a file of the container's.
func removeFilestores(rootfs string) error {
	left, err := filepath.Glob(filepath.Join(rootfs, filestore+"*"))
	for _, path := range left {
		if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// dropFilestore takes away what a sandbox of this very container left that nobody has cleaned up after: the machine stopped while it ran.
func (w *Workload) dropFilestore(context.Context, CreateRequest, *undo.Stack) error {
	err := os.Remove(filepath.Join(w.spec.Root.Path, filestore+w.opts.ID))
	if err == nil {
		w.opts.Log.Warn("what the container had written when the machine stopped is lost: it was awake")
	} else if !errors.Is(err, fs.ErrNotExist) {
		w.opts.Log.Warn("the filestore of an earlier sandbox", "error", err) // if it is in the way, the boot says so
	}
	return nil
}

// nameFilestore puts an empty file where a sandbox's filestore has lost its name: `runsc delete` fails without one to
// remove. What can't be written here it will complain of itself.
func nameFilestore(rootfs, id string) {
	f, err := os.OpenFile(filepath.Join(rootfs, filestore+id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_ = f.Close()
	}
}

// hideFilestore is removeFilestores for a sandbox that runs on, or is paused.
func (w *Workload) hideFilestore() {
	if err := removeFilestores(w.spec.Root.Path); err != nil {
		w.opts.Log.Warn("the sandbox's filestore can be seen in the container's snapshot", "error", err)
	}
	for _, c := range w.inside() {
		if err := removeFilestores(c.member.rootfs()); err != nil {
			w.opts.Log.Warn("the sandbox's filestore can be seen in the container's snapshot", "container", c.ID, "error", err)
		}
	}
}

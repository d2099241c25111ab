package command

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/daemon/admission"
	"github.com/hibernate-runtime/hibernate/internal/config"
)

// room is what hibernations at once may write: each one's memory goes to the disk by way of the node's. One alone always may: its shim
// knows best whether it fits.
type room struct {
	free func() (uint64, error) // bytes, at the moment

	mu      sync.Mutex // guards what follows
	taken   uint64
	running int
	changed chan struct{} // closed at the next leave
}

func newRoom(o *options) (*room, error) {
	cfg, err := config.Load(config.Input{File: o.config})
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	dirs, err := o.cordonDirs()
	if err != nil {
		return nil, err
	}
	return &room{changed: make(chan struct{}), free: func() (uint64, error) { return freeRoom(dirs[1], cfg.MinFreeDisk) }}, nil
}

// freeRoom is the lesser of what the disk and the node's memory can take.
func freeRoom(dir string, spare uint64) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	disk := st.Bavail * uint64(st.Bsize)
	disk -= min(disk, spare)
	if memory, err := admission.Available(); err == nil {
		return min(disk, memory), nil
	}
	return disk, nil
}

// roomAgain is the time between two looks at what is free.
const roomAgain = time.Second

// enter waits until so many bytes may be written besides the others', and takes them until leave.
func (r *room) enter(ctx context.Context, bytes uint64) error {
	for ctx.Err() == nil {
		free, err := r.free()
		r.mu.Lock()
		if r.running == 0 || err == nil && r.taken+bytes <= free {
			r.running++
			r.taken += bytes
			r.mu.Unlock()
			return nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(roomAgain):
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func (r *room) leave(bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.taken -= bytes
	close(r.changed)
	r.changed = make(chan struct{})
}

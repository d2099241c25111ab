package snapshot

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// writeAheadEvery is short against a checkpoint of 16 MiB, and long against
// the three system calls of a look.
const writeAheadEvery = 2 * time.Millisecond

// WriteAhead makes the kernel write the checkpoint to disk while runsc still
// produces it, so that Seal has less to wait for: 58 instead of 270 ms at
// 1 GiB, 12 instead of 38 at 128 MiB. It runs until stop is called, which
// waits for it and may be called twice. It is a hint only: what goes wrong is
// left for Seal to find.
//
//	stop := in.WriteAhead()
//	err := runsc.Checkpoint(…)
//	stop()
func (in *Incoming) WriteAhead() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { writeAhead(filepath.Join(in.ImageDir(), pagesFile), done) })
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

func writeAhead(path string, done <-chan struct{}) {
	tick := time.NewTicker(writeAheadEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		f, err := os.Open(path)
		if err != nil {
			continue // Not there yet.
		}
		_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
		_ = f.Close()
	}
}

package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// readAheadStep is what the kernel surely reads in whole when it is asked to: of more it may read a part only.
const readAheadStep = 128 << 10

// ReadAhead has the kernel begin to read what will probably be asked for first of pages.img, in that order, and before that the small
// files, without which nothing begins. It waits for nothing that is read, so that the disk has as much to do at once as it can take, and
// costs next to nothing where all is in memory. It is a hint. Without one in the manifest it does nothing.
func (s *Snapshot) ReadAhead(ctx context.Context) error {
	chunks := s.manifest.FirstChunks()
	if len(chunks) == 0 {
		return nil
	}
	for _, f := range s.manifest.Files {
		if f.Name == pagesFile {
			continue
		}
		if err := s.readFileAhead(ctx, f.Name, allChunks(f)); err != nil {
			return err
		}
	}
	return s.readFileAhead(ctx, pagesFile, chunks)
}

func allChunks(f File) []int {
	all := make([]int, f.chunks())
	for i := range all {
		all[i] = i
	}
	return all
}

func (s *Snapshot) readFileAhead(ctx context.Context, name string, chunks []int) error {
	f, err := os.OpenFile(filepath.Join(s.ImageDir(), name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read snapshot %d ahead: %w", s.Sequence(), err)
	}
	defer f.Close()
	for _, c := range chunks {
		for at := 0; at < ChunkSize; at += readAheadStep {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := unix.Fadvise(int(f.Fd()), int64(c)*ChunkSize+int64(at), readAheadStep, unix.FADV_WILLNEED); err != nil {
				return fmt.Errorf("read snapshot %d ahead: %w", s.Sequence(), &os.PathError{Op: "fadvise", Path: f.Name(), Err: err})
			}
		}
	}
	return nil
}

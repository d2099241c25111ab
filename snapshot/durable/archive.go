package durable

import (
	"archive/tar"
	"context"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Archive writes the snapshot to w as a tar archive of what Restore writes: the files, each chunk compared with its checksum, and at last
// manifest.json. An archive without it is not whole.
func (r *Reader) Archive(ctx context.Context, w io.Writer, tell func(Progress)) error {
	ctx, stop := r.within(ctx)
	defer stop()
	if err := r.archive(ctx, w, tell); err != nil {
		return fmt.Errorf("archive snapshot %d of %s: %w", r.generation.Sequence, r.l.name, err)
	}
	return nil
}

func (r *Reader) archive(ctx context.Context, w io.Writer, tell func(Progress)) error {
	out := tar.NewWriter(w)
	entry := func(name string, size int64) error {
		return out.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: r.document.Created, Format: tar.FormatPAX})
	}
	buf := make([]byte, snapshot.ChunkSize)
	var done int64
	for _, f := range r.document.Files {
		if err := entry(f.Name, f.Size); err != nil {
			return err
		}
		file, err := r.File(f.Name)
		if err != nil {
			return err
		}
		for n, want := range f.CRC32C {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			off := int64(n) * snapshot.ChunkSize
			part := buf[:min(snapshot.ChunkSize, f.Size-off)]
			if _, err := file.ReadAt(part, off); err != nil {
				return err
			}
			if sum := crc32.Checksum(part, castagnoli); sum != want {
				return wrongChunk(f.Name, int64(n), sum, want)
			}
			if _, err := out.Write(part); err != nil {
				return err
			}
			if done += int64(len(part)); tell != nil {
				tell(Progress{Image: imageSize(r.document), Done: done, Moved: r.moved.Load()})
			}
		}
	}
	if err := entry(documentName, int64(len(r.manifest.document))); err != nil {
		return err
	}
	if _, err := out.Write(r.manifest.document); err != nil {
		return err
	}
	return out.Close()
}

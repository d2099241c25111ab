package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Image is a snapshot outside the durable tier.
type Image struct {
	Document []byte // manifest.json, as it stands
	Dir      string // of the files that it names
}

// FromSnapshot is the image of a snapshot of the local tier.
func FromSnapshot(s *snapshot.Snapshot) (Image, error) {
	path := filepath.Join(filepath.Dir(s.ImageDir()), documentName)
	st, err := os.Stat(path)
	if err == nil && st.Size() > maxDocument {
		err = corrupt(path, "%d bytes", st.Size())
	}
	if err != nil {
		return Image{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Image{}, err
	}
	return Image{Document: data, Dir: s.ImageDir()}, nil
}

// openFiles opens those that the document names, which must be as long as it says.
func (im Image) openFiles(doc snapshot.Manifest) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for _, want := range doc.Files {
		f, err := os.OpenFile(filepath.Join(im.Dir, want.Name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			return files, truncated(want.Name, "not there")
		}
		if err != nil {
			return files, err
		}
		files = append(files, f)
		st, err := f.Stat()
		switch {
		case err != nil:
			return files, err
		case !st.Mode().IsRegular():
			return files, corrupt(want.Name, "not a regular file")
		case st.Size() < want.Size:
			return files, truncated(want.Name, "%d bytes, want %d", st.Size(), want.Size)
		case st.Size() > want.Size:
			return files, corrupt(want.Name, "%d bytes, want %d", st.Size(), want.Size)
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// wrongChunk is a CorruptError of a chunk of 1 MiB.
func wrongChunk(file string, chunk int64, got, want uint32) error {
	return &snapshot.CorruptError{File: file, Chunk: int(chunk), Reason: fmt.Sprintf("checksum is %08x, want %08x", got, want)}
}

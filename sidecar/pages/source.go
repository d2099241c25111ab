// Package pages reads the files of a checkpoint from where a snapshot is kept, and lets no byte through that was not
// compared with its checksum.
//
// A source is such a place: the directory of a snapshot now, a durable tier later. A file is cut into chunks, each with
// its CRC32C; a chunk is read as a whole, checked, and kept for a moment in one of a fixed number of buffers.
package pages

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Source is a place that snapshots are read from.
type Source interface {
	// Open opens one file by its base name. Whoever calls it closes the Blob.
	Open(name string) (Blob, error)
}

// Blob is one file of a source. ReadAt may be called from many goroutines, as io.ReaderAt says. What it returns is not
// trusted. The error of a read is one of the place: the bytes may be there and right.
type Blob interface {
	ReadAt(p []byte, off int64) (int, error)
	Close() error
}

// Expecter is a Blob that can begin to fetch chunks before they are asked for.
type Expecter interface {
	// Expect names the chunks that will probably be asked for first, in that order, each once. It returns at once. Nothing more
	// is promised: some may never be asked for, and others before them.
	Expect(chunks []int)
}

// Directory is a source of plain files.
type Directory string

// Open opens a regular file of the directory for reading; links are not followed.
func (d Directory) Open(name string) (Blob, error) {
	f, err := os.OpenFile(filepath.Join(string(d), filepath.Base(name)), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // a hint: the kernel reads further ahead
	return f, nil
}

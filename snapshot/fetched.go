package snapshot

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

const fetchedDir = "fetched"

// PagesFile has the memory: all but some MiB of a snapshot.
const PagesFile = pagesFile

// Fetched is a snapshot from elsewhere while it is being restored: its manifest, and those of its files that were added. It never
// counts as one that the workload has; the next owner of the directory throws it away.
type Fetched struct {
	l        *Local
	dir      string
	manifest Manifest
}

// Fetch begins one by its manifest.json, in the place of an earlier one. ErrCorrupt, ErrVersion, ErrNoSpace.
func (l *Local) Fetch(document []byte) (*Fetched, error) {
	m, err := parseManifest(document)
	if err != nil {
		return nil, fmt.Errorf("fetch a snapshot: %w", err)
	}
	f := &Fetched{l: l, dir: l.path(fetchedDir, strconv.FormatInt(l.now().UnixNano(), 10)), manifest: m}
	if err := l.throwAway(fetchedDir); err != nil {
		return nil, fmt.Errorf("fetch snapshot %d: %w", m.Sequence, err)
	}
	if err := os.MkdirAll(f.Snapshot().ImageDir(), 0o700); err != nil {
		return nil, fmt.Errorf("fetch snapshot %d: %w", m.Sequence, spaceError(err))
	}
	l.emptyTrash()
	return f, nil
}

// Snapshot is what it will be once all files are added. Its Verify is for then.
func (f *Fetched) Snapshot() *Snapshot {
	return &Snapshot{dir: f.dir, manifest: f.manifest}
}

// Add writes a file of the manifest, chunk by chunk as read gives them, each compared with its checksum, and syncs it. ErrCorrupt,
// ErrNoSpace, read's.
func (f *Fetched) Add(ctx context.Context, name string, read func(ctx context.Context, name string, p []byte, off int64) error) error {
	for _, want := range f.manifest.Files {
		if want.Name == name {
			if err := f.add(ctx, want, read); err != nil {
				return fmt.Errorf("fetch %s of snapshot %d: %w", name, f.manifest.Sequence, spaceError(err))
			}
			return nil
		}
	}
	return fmt.Errorf("fetch snapshot %d: %w", f.manifest.Sequence, corrupt(name, "not part of the snapshot"))
}

func (f *Fetched) add(ctx context.Context, want File, read func(ctx context.Context, name string, p []byte, off int64) error) error {
	path := filepath.Join(f.Snapshot().ImageDir(), want.Name)
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	buf := make([]byte, min(ChunkSize, want.Size))
	for chunk, sum := range want.CRC32C {
		off := int64(chunk) * ChunkSize
		part := buf[:min(ChunkSize, want.Size-off)]
		if err := read(ctx, want.Name, part, off); err != nil {
			return err
		}
		if got := crc32.Checksum(part, castagnoli); got != sum {
			return &CorruptError{File: want.Name, Chunk: chunk, Reason: fmt.Sprintf("checksum is %08x, want %08x", got, sum)}
		}
		if _, err := to.WriteAt(part, off); err != nil {
			return err
		}
	}
	if err := to.Sync(); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// Drop deletes it, and none that was begun later.
func (f *Fetched) Drop() error {
	if err := os.RemoveAll(f.dir); err != nil {
		return fmt.Errorf("drop what was fetched of snapshot %d: %w", f.manifest.Sequence, err)
	}
	return nil
}

// SmallFiles are the names of the files beside the pages.
func (m Manifest) SmallFiles() (names []string) {
	for _, f := range m.Files {
		if f.Name != pagesFile {
			names = append(names, f.Name)
		}
	}
	return names
}

// ParseManifest reads a manifest.json from elsewhere: ErrCorrupt, ErrVersion.
func ParseManifest(document []byte) (Manifest, error) { return parseManifest(document) }

// Same says whether two manifests are of one snapshot.
func (m Manifest) Same(other Manifest) bool {
	if m.Sequence != other.Sequence || !m.Created.Equal(other.Created) || len(m.Files) != len(other.Files) {
		return false
	}
	for i, f := range m.Files {
		if g := other.Files[i]; f.Name != g.Name || sameFiles([]File{f}, []File{g}) != nil {
			return false
		}
	}
	return true
}

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Export is a snapshot outside a local tier, in a directory of somebody else's:
// runsc's files and, where this package wrote it, the manifest, side by side in
// one flat directory. Other files there are not looked at.
type Export struct {
	dir      string
	manifest *Manifest
}

// OpenExport reads the manifest of the export in dir. One without a manifest,
// as runsc itself writes it, is no error. Errors: ErrTruncated when a file of
// runsc's is not there, ErrCorrupt, ErrVersion.
func OpenExport(dir string) (*Export, error) {
	e := &Export{dir: dir}
	m, err := readManifest(dir)
	switch {
	case err == nil:
		e.manifest = &m
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	for _, name := range e.names() {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", dir, truncated(name, "not there"))
		} else if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Manifest is what the manifest says; ok is false when there is none.
func (e *Export) Manifest() (m Manifest, ok bool) {
	if e.manifest == nil {
		return Manifest{}, false
	}
	return *e.manifest, true
}

func (e *Export) names() []string {
	if e.manifest == nil {
		return []string{stateFile, pagesFile, pagesMetaFile}
	}
	var names []string
	for _, f := range e.manifest.Files {
		names = append(names, f.Name)
	}
	return names
}

// Export writes a copy of the snapshot into dir, after it has read and checked
// all of it. dir must be there, without any of the files: else os.ErrExist. On
// error nothing of the copy is left. The copy is not synced.
func (s *Snapshot) Export(ctx context.Context, dir string) error {
	if err := s.Verify(ctx); err != nil {
		return err
	}
	if err := export(ctx, s.ImageDir(), dir, s.manifest); err != nil {
		return fmt.Errorf("export snapshot %d: %w", s.Sequence(), err)
	}
	return nil
}

// Export writes a copy of a sealed checkpoint, with m, into dir, under the same
// rules. Its own fields of m are set as Commit does. The incoming one stays.
func (in *Incoming) Export(ctx context.Context, dir string, m Manifest) error {
	if in.sealed == nil || in.done {
		return ErrNotSealed
	}
	if err := export(ctx, in.ImageDir(), dir, in.complete(m)); err != nil {
		return fmt.Errorf("export snapshot %d: %w", in.sequence, err)
	}
	return nil
}

// Import fills the incoming snapshot with a copy of e and seals it, and
// compares the checksums where e has some: ErrCorrupt, ErrTruncated, ErrNoSpace.
// On error the incoming snapshot is discarded.
func (in *Incoming) Import(ctx context.Context, e *Export) (Sealed, error) {
	for _, name := range e.names() {
		if err := copyFile(ctx, filepath.Join(e.dir, name), filepath.Join(in.ImageDir(), name)); err != nil {
			return Sealed{}, errors.Join(fmt.Errorf("import %s: %w", e.dir, spaceError(err)), in.Discard())
		}
	}
	s, err := in.Seal(ctx)
	if err != nil {
		return Sealed{}, err
	}
	if e.manifest == nil {
		return s, nil
	}
	if err := sameFiles(s.Files, e.manifest.Files); err != nil {
		return Sealed{}, errors.Join(fmt.Errorf("import %s: %w", e.dir, err), in.Discard())
	}
	return s, nil
}

func sameFiles(got, want []File) error {
	for i, w := range want {
		g := got[i]
		if g.Size != w.Size {
			return corrupt(w.Name, "%d bytes, want %d", g.Size, w.Size)
		}
		for chunk, sum := range w.CRC32C {
			if g.CRC32C[chunk] != sum {
				return &CorruptError{File: w.Name, Chunk: chunk, Reason: fmt.Sprintf("checksum is %08x, want %08x", g.CRC32C[chunk], sum)}
			}
		}
	}
	return nil
}

func export(ctx context.Context, from, dir string, m Manifest) (err error) {
	var made []string
	defer func() {
		if err != nil {
			for _, path := range made {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	data, err := encodeDocument(manifestFormat, ManifestVersion, m)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, manifestFile)); err == nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, manifestFile), os.ErrExist)
	}
	for _, f := range m.Files {
		to := filepath.Join(dir, f.Name)
		if err := copyFile(ctx, filepath.Join(from, f.Name), to); err != nil {
			return spaceError(err)
		}
		made = append(made, to)
	}
	// The manifest comes last: what has one is whole.
	return spaceError(atomicfile.Write(filepath.Join(dir, manifestFile), data, 0o600, atomicfile.Options{}))
}

// copyStep is how much is copied between two looks at ctx.
const copyStep = 64 << 20

// copyFile copies a regular file to a new one, in the kernel where it can. On
// error nothing is left.
func copyFile(ctx context.Context, from, to string) (err error) {
	src, err := openFile(filepath.Dir(from), filepath.Base(from))
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, dst.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(to))
		}
	}()
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		_, err := io.CopyN(dst, src.File, copyStep)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("copy to %s: %w", to, err)
		}
	}
}

// complete sets the fields of m that are the incoming snapshot's to say.
func (in *Incoming) complete(m Manifest) Manifest {
	m.Sequence, m.Parent, m.Version = in.sequence, in.parent, ManifestVersion
	m.Created, m.Lineage, m.Files = in.l.now().UTC(), in.lineage, slices.Clone(in.sealed.Files)
	return m
}

// EncodeManifest gives the bytes of manifest.json. Version is set.
func EncodeManifest(m Manifest) ([]byte, error) {
	m.Version = ManifestVersion
	return encodeDocument(manifestFormat, ManifestVersion, m)
}

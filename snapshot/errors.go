package snapshot

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors that a caller decides on, all to be tested with errors.Is.
var (
	// ErrNoHead: nothing was ever committed or said about this workload.
	ErrNoHead = errors.New("no head")
	// ErrNone: there is no snapshot that may be restored.
	ErrNone = errors.New("no snapshot")
	// ErrBusy: another process owns the workload. See [BusyError].
	ErrBusy = errors.New("workload is in use by another process")
	// ErrCorrupt: content is not what was committed. See [CorruptError].
	ErrCorrupt = errors.New("corrupt")
	// ErrTruncated: a file is shorter than it must be; also an ErrCorrupt.
	ErrTruncated = errors.New("truncated")
	// ErrVersion: written by a newer version of this program. See [VersionError].
	ErrVersion = errors.New("format version not supported")
	// ErrNoSpace: the disk, or the quota on it, is full.
	ErrNoSpace = errors.New("no space left for the snapshot")
	// ErrEpoch: someone with a newer right to execute has been here.
	ErrEpoch = errors.New("epoch is over")
	// ErrNotSealed: Commit was called before Seal, or Seal failed.
	ErrNotSealed = errors.New("incoming snapshot is not sealed")
)

// CorruptError says what is wrong where.
type CorruptError struct {
	File      string // name inside the snapshot, or of the document
	Chunk     int    // index of the chunk of 1 MiB; -1: not one chunk
	Truncated bool   // shorter than it must be
	Reason    string
}

func (e *CorruptError) Error() string {
	kind := "corrupt"
	if e.Truncated {
		kind = "truncated"
	}
	if e.Chunk >= 0 {
		return fmt.Sprintf("%s: %s: chunk %d: %s", e.File, kind, e.Chunk, e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s", e.File, kind, e.Reason)
}

// Is makes every CorruptError an ErrCorrupt, and a truncated one ErrTruncated.
func (e *CorruptError) Is(target error) bool {
	return target == ErrCorrupt || target == ErrTruncated && e.Truncated
}

// BusyError names the process that owns the workload.
type BusyError struct {
	Dir string
	Pid int // 0: not known
}

func (e *BusyError) Error() string {
	if e.Pid == 0 {
		return fmt.Sprintf("%s: %v", e.Dir, ErrBusy)
	}
	return fmt.Sprintf("%s: %v: pid %d", e.Dir, ErrBusy, e.Pid)
}

// Is makes it an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// VersionError says that a document is from a newer program.
type VersionError struct {
	Document     string
	Found, Known int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has format version %d, this program knows up to %d: upgrade it before using this snapshot", e.Document, e.Found, e.Known)
}

// Is makes it an ErrVersion.
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// spaceError marks an error of a full disk as ErrNoSpace and leaves others.
func spaceError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func corrupt(file, format string, args ...any) error {
	return &CorruptError{File: file, Chunk: -1, Reason: fmt.Sprintf(format, args...)}
}

func truncated(file, format string, args ...any) error {
	return &CorruptError{File: file, Chunk: -1, Truncated: true, Reason: fmt.Sprintf(format, args...)}
}

// Package store keeps objects where more than one node can reach them: an S3 bucket, or a directory.
//
// It knows nothing of snapshots. All that the durable tier relies on is said here, once for all kinds of stores, and
// compared with each of them by the same tests (package storetest).
package store

import (
	"context"
	"errors"
	"io"
	"time"
)

// Store keeps objects by name. All methods may be called from many goroutines; each ends with its context at the latest.
//
// For names see CheckName. An object is never empty: Put refuses to write such a one.
//
// What a method has done when it returns an error that is none of ErrNotFound, ErrExists and ErrChanged is unknown: the
// answer may have been lost on its way. Whoever needs to know reads the object and compares. The end of the context is
// told by its own error, context.Canceled or context.DeadlineExceeded.
type Store interface {
	// Put writes an object whole: a reader sees the old one, or the new one, or none, never a part. When it returns nil the
	// object outlives a crash of the store as far as the store promises that at all. ErrExists and ErrChanged say that
	// the condition didn't hold, and that nothing was written by this request; an earlier request of the same call, whose answer
	// was lost, may have written it. The version is never empty when there is no error. When there is one the body may
	// still be read for a while: it must not be used for something else.
	Put(ctx context.Context, name string, body []byte, cond Condition) (Version, error)

	// Get reads an object whole, at most limit bytes. ErrNotFound only where the store says for certain that the object
	// isn't there; ErrTooLarge when it is longer than limit. All bytes are of the one object that Info describes.
	Get(ctx context.Context, name string, limit int64) ([]byte, Info, error)

	// GetRange reads exactly length bytes from offset, or fails; io.ErrUnexpectedEOF when the object ends before.
	GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error)

	// Stat tells what Get would, without the bytes.
	Stat(ctx context.Context, name string) (Info, error)

	// List returns all objects whose names begin with prefix, in order of their names' bytes, and the time by the
	// store's own clock at which the listing began, cut to seconds. Either the list is complete or there is an error; what
	// was written or deleted meanwhile may be in it or not. Their versions may be missing, where telling them means reading
	// all that is there. Things with names that no object has are left out.
	List(ctx context.Context, prefix string) ([]Info, time.Time, error)

	// Delete removes an object; one that isn't there is no error.
	Delete(ctx context.Context, name string) error

	io.Closer
}

// Version tells one content of an object from another: compared for equality, and never interpreted. Equal bytes may
// have equal versions, so an object that is changed by comparison must have something in it that is new each time. It is
// no digest that could be relied on.
type Version string

// Condition says when Put may write. The zero value: always. Both at once are refused.
type Condition struct {
	Absent  bool    // only where no object of the name is there
	Version Version // only over exactly this one
}

// Always is the Condition without a condition.
var Always = Condition{}

// Info describes an object.
type Info struct {
	Name     string
	Size     int64 // bytes
	Version  Version
	Modified time.Time // by the store's clock, cut to seconds
}

// Errors that callers decide on. Those of a store wrap them with the object's name and what to do.
var (
	// ErrNotFound: the store answered, with the right credentials, that no object has this name.
	ErrNotFound = errors.New("no such object")
	// ErrExists: an object of the name is there, and Condition.Absent was asked for.
	ErrExists = errors.New("object exists")
	// ErrChanged: the object isn't the one that Condition.Version names, or isn't there any more.
	ErrChanged = errors.New("object has changed")
	// ErrTooLarge: the object is longer than the caller takes.
	ErrTooLarge = errors.New("object is too large")
	// ErrRefused: the store will not do it for these credentials, or not for anybody: wrong keys, missing rights, no such
	// bucket, a clock that is wrong. Trying again doesn't help; a person must.
	ErrRefused = errors.New("store refuses")
	// ErrUnavailable: the store didn't answer, or said that it can't now, or something between here and it is broken. Trying
	// again later helps. So also when another writer of the same object was just at it, and the store wouldn't say who won.
	ErrUnavailable = errors.New("store is unavailable")
)

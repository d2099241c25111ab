package task

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Classify gives an error the class that containerd's callers act on. The plugin turns classes into gRPC codes.
func Classify(err error) error {
	var illegal *lifecycle.IllegalError
	var refused *sandbox.RefusedError
	var aborted *sandbox.AbortedError
	var setting *config.Error
	class := error(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrNotThere):
		class = errdefs.ErrNotFound
	case errors.Is(err, sandbox.ErrExists), errors.Is(err, fs.ErrExist), errors.Is(err, snapshot.ErrTaken):
		class = errdefs.ErrAlreadyExists
	case errors.As(err, &aborted), errors.Is(err, sandbox.ErrActivity):
		class = errdefs.ErrAborted
	case errors.As(err, &illegal), errors.As(err, &refused), errors.Is(err, sandbox.ErrBlocked),
		errors.Is(err, sandbox.ErrPaused), errors.Is(err, sandbox.ErrPrecondition),
		errors.Is(err, sandbox.ErrKilled):
		class = errdefs.ErrFailedPrecondition
	case errors.As(err, &setting):
		class = errdefs.ErrInvalidArgument
	case errors.Is(err, runsc.ErrMissing), errors.Is(err, sandbox.ErrCordoned):
		class = errdefs.ErrUnavailable
	default:
		return err
	}
	return classified{err, class}
}

// classified is an error with its class. The text ends with the class, as that of containerd's own errors does: clients
// take it off there. Only the class is unwrapped, or the text would be sent once for each of the two.
type classified struct{ error, class error }

func (c classified) Error() string {
	text := c.error.Error()
	if strings.HasSuffix(text, c.class.Error()) {
		return text
	}
	return text + ": " + c.class.Error()
}

func (c classified) Unwrap() error { return c.class }

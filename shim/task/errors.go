package task

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
)

// Classify gives an error the class that containerd's callers act on. The plugin turns classes into gRPC codes.
func Classify(err error) error {
	var illegal *lifecycle.IllegalError
	var refused *sandbox.RefusedError
	var aborted *sandbox.AbortedError
	class := error(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandbox.ErrNotFound):
		class = errdefs.ErrNotFound
	case errors.Is(err, sandbox.ErrExists):
		class = errdefs.ErrAlreadyExists
	case errors.As(err, &aborted):
		class = errdefs.ErrAborted
	case errors.As(err, &illegal), errors.As(err, &refused), errors.Is(err, sandbox.ErrBlocked),
		errors.Is(err, sandbox.ErrPrecondition):
		class = errdefs.ErrFailedPrecondition
	case errors.Is(err, runsc.ErrMissing):
		class = errdefs.ErrUnavailable
	default:
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}

package command

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/daemon/children"
	"github.com/hibernate-runtime/hibernate/daemon/leftover"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

// The exit codes, as the root command's help tells them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnreachable = 5
	exitProblems    = 6
)

// usageError is a mistake in the arguments.
type usageError struct{ error }

// errNotAwake means that a wake ended without the workload being awake.
var errNotAwake = errors.New("the workload is not awake")

// exitCode says how the process ends for an error.
func exitCode(err error) int {
	var usage usageError
	var unknown *unknownError
	var missing *missingError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"): // cobra has no type for it
		return exitUsage
	case errors.As(err, &unknown), errors.As(err, &missing), errdefs.IsNotFound(err):
		return exitNotFound
	case errdefs.IsFailedPrecondition(err), errdefs.IsAborted(err), errdefs.IsAlreadyExists(err), errors.Is(err, errNotAwake),
		errors.Is(err, leftover.ErrExists), errors.Is(err, leftover.ErrUnknown), errors.Is(err, leftover.ErrBusy),
		errors.Is(err, children.ErrNotOurs), errors.Is(err, children.ErrNetwork):
		return exitRefused
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, shimclient.ErrUnreachable), errors.Is(err, errNoDaemon), errors.Is(err, errCut), errdefs.IsUnavailable(err),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return exitUnreachable
	default:
		return exitError
	}
}

// message words an error for a person.
func message(err error) string {
	var usage usageError
	if errors.As(err, &usage) {
		return err.Error() + " (see hibernatectl --help)"
	}
	return shimclient.Message(err)
}

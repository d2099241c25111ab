package runsc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// Runner starts cmd and waits until it has ended. A non-zero end is reported
// as *ExitError, a failure to start as the error of exec.Cmd.Start. cmd is built
// with exec.CommandContext, so it is killed when ctx ends; Run returns only once
// the process is reaped. A process that reaps all its children (a shim) supplies
// a Runner that learns the status from its reaper.
type Runner interface {
	Run(ctx context.Context, cmd *exec.Cmd) error
}

// ExitError says that a process ended with a status other than 0; 128 plus the
// signal's number when a signal ended it.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// ExecRunner is the Runner of a process that does not reap for others.
type ExecRunner struct{}

// Run implements Runner.
func (ExecRunner) Run(_ context.Context, cmd *exec.Cmd) error {
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return &ExitError{Code: 128 + int(ws.Signal())}
	}
	return &ExitError{Code: exit.ExitCode()}
}

package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// The kinds of failure that callers tell apart with errors.Is.
var (
	ErrNotFound   = errors.New("container does not exist")
	ErrNotRunning = errors.New("container or process is not in a state for this")
	ErrExists     = errors.New("container exists already")
	ErrNoSpace    = errors.New("no space left on device")
	ErrVersion    = errors.New("image was made by another version of runsc")
	ErrCPU        = errors.New("image needs CPU features that this host lacks")
	ErrSpec       = errors.New("spec, flags or files differ from those of the image")
	ErrImage      = errors.New("image is missing or damaged")
	ErrCrashed    = errors.New("sandbox ended during the call")
	ErrBundle     = errors.New("bundle cannot be read")
	ErrFlag       = errors.New("runsc does not know the command line")
	ErrDeadline   = errors.New("runsc did not finish in time")
	ErrMissing    = errors.New("runsc binary cannot be executed")
	ErrFilestore  = errors.New("file of what the container has written is gone")
)

// Error is the failure of one call. Message is runsc's own last error line, or
// what kept it from running. Kind is one of this package's Err values, the
// cause of the context when that ended the call, or nil when unknown.
type Error struct {
	Command, ID string
	Code        int // exit status; 0 when runsc did not exit by itself
	Message     string
	Kind        error
	Log         string // path of runsc's log of this call, "" when there is none
}

func (e *Error) Error() string {
	who := "runsc " + e.Command
	if e.ID != "" {
		who += " " + e.ID
	}
	if e.Kind != nil && e.Kind.Error() != e.Message {
		return fmt.Sprintf("%s: %v: %s", who, e.Kind, e.Message)
	}
	return who + ": " + e.Message
}

// Unwrap gives the kind.
func (e *Error) Unwrap() error { return e.Kind }

// failure turns the end of a call into an *Error.
func failure(ctx context.Context, op call, err error, log string, stderr []byte) error {
	e := &Error{Command: op.command, ID: op.id, Log: log}
	e.Message = message(log, stderr)
	if e.Message == "" {
		_ = os.Remove(log)
		e.Log = ""
		e.Message = err.Error()
	}
	var exit *ExitError
	switch {
	case ctx.Err() != nil:
		e.Kind = ended(ctx)
	case errors.As(err, &exit):
		e.Code = exit.Code
		e.Kind = classify(op.command, e.Message)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		e.Kind = ErrMissing
	default:
		e.Kind = err
	}
	return e
}

// ended says why the context is over; the caller's own deadline counts as
// ErrDeadline too.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return ErrDeadline
	}
	return cause
}

// message gives the last error that runsc logged, else the first line of its
// standard error.
func message(log string, stderr []byte) string {
	if data, err := os.ReadFile(log); err == nil {
		if m := lastError(data); m != "" {
			return m
		}
	}
	return firstLine(string(stderr))
}

// firstLine leaves out the stack that a panic in the sandbox adds.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSuffix(line, ":")
}

// lastError reads runsc's log: JSON objects, one after another without newline.
func lastError(data []byte) string {
	var last string
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var line struct{ Msg, Level string }
		if dec.Decode(&line) != nil {
			return last
		}
		if line.Level == "error" {
			last = firstLine(line.Msg)
		}
	}
}

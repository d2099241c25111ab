package stdio

import (
	"context"
	"errors"
	"os"
	"strings"
)

// Config names the streams as containerd does: a path of a FIFO or file, or a
// URI; "" for none. A file:// of stdout takes both outputs, and so does the
// program of a binary:// or binary-v2://, whatever Stderr says.
type Config struct {
	Stdin, Stdout, Stderr string
	Terminal              bool   // a pty on stdin and stdout; Stderr is not used
	Dir                   string // for the console socket; "" is the temporary directory

	// For a logger: whose it is, and who starts it.
	ID, Namespace string
	Start         Start

	// OnInput, when set, is called after input from the client has been put
	// where the sandbox finds it. It must not block.
	OnInput func()
}

// Relay holds the streams of one process. Its methods may be called from many
// goroutines.
type Relay struct {
	in       *input    // nil: no stdin
	out      *output   // nil: no stdout
	err      *output   // nil: no stderr
	terminal *terminal // nil: not a terminal
	logger   *logger   // nil: the outputs go elsewhere
}

// Open opens what Config names, without waiting for the other side; for a logger
// it waits until that is ready. ctx bounds only Open itself.
func Open(ctx context.Context, c Config) (*Relay, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &Relay{}
	if err := r.open(ctx, c); err != nil {
		return nil, errors.Join(err, r.abandon())
	}
	return r, nil
}

func (r *Relay) open(ctx context.Context, c Config) (err error) {
	if r.logger, err = r.openOutputs(ctx, c); err != nil {
		return err
	}
	if c.Terminal {
		r.terminal, err = openConsole(c, r.out)
		return err
	}
	r.in, err = openInput(c.Stdin, c.OnInput)
	return err
}

func (r *Relay) openOutputs(ctx context.Context, c Config) (l *logger, err error) {
	if isLogger(c.Stdout) {
		l, r.out, r.err, err = openLogger(ctx, c)
		return l, err
	}
	if r.out, err = openOutput(c.Stdout); err != nil || c.Terminal {
		return nil, err
	}
	if c.Stderr != "" && strings.HasPrefix(c.Stdout, "file://") {
		c.Stderr = c.Stdout
	}
	r.err, err = openOutput(c.Stderr)
	return nil, err
}

// Files are the sandbox's ends, nil where there is no stream. The same files
// serve each new sandbox. They belong to the relay.
func (r *Relay) Files() (stdin, stdout, stderr *os.File) {
	if r.terminal != nil {
		return nil, nil, nil
	}
	if r.in != nil {
		stdin = r.in.sandbox
	}
	return stdin, r.out.file(), r.err.file()
}

// ConsoleSocket is the path for runsc's --console-socket, "" without a terminal.
func (r *Relay) ConsoleSocket() string {
	if r.terminal == nil {
		return ""
	}
	return r.terminal.path
}

// Resize sets the terminal's size in characters, now or when its pty arrives.
// Without a terminal it does nothing.
func (r *Relay) Resize(width, height uint16) error {
	if r.terminal == nil {
		return nil
	}
	return r.terminal.resize(width, height)
}

// CloseStdin lets the process read what the client has written so far, and
// then the end of its input. It is idempotent and does not wait. A terminal's
// input is only no longer copied.
func (r *Relay) CloseStdin() error {
	switch {
	case r.terminal != nil:
		r.terminal.closeInput()
	case r.in != nil:
		r.in.finish()
	}
	return nil
}

// Finish is called once the process has ended. It closes the sandbox's ends,
// lets the readers have what was written, and closes all else. It waits for a
// reader only where there is something to read and nobody has the FIFO open; ctx
// bounds that. A logger has nine seconds to end. The relay is of no use afterwards, whatever Finish returns.
func (r *Relay) Finish(ctx context.Context) error {
	var errs []error
	if r.terminal != nil {
		errs = append(errs, r.terminal.close(ctx))
	}
	if r.in != nil {
		errs = append(errs, r.in.close())
	}
	errs = append(errs, r.out.close(ctx), r.err.close(ctx))
	return errors.Join(append(errs, r.logger.close())...)
}

// abandon closes what a failed Open has opened.
func (r *Relay) abandon() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Finish(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

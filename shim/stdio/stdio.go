package stdio

import (
	"context"
	"errors"
	"os"
)

// Config names the streams as containerd does: a path of a FIFO or file, or a
// URI fifo:// or file://; "" for none.
type Config struct {
	Stdin, Stdout, Stderr string
	Terminal              bool   // a pty on stdin and stdout; Stderr is not used
	Dir                   string // for the console socket; "" is the temporary directory

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
}

// Open opens what Config names, without waiting for the other side. ctx bounds
// only Open itself.
func Open(ctx context.Context, c Config) (*Relay, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &Relay{}
	if err := r.open(c); err != nil {
		return nil, errors.Join(err, r.abandon())
	}
	return r, nil
}

func (r *Relay) open(c Config) (err error) {
	if r.out, err = openOutput(c.Stdout); err != nil {
		return err
	}
	if c.Terminal {
		r.terminal, err = openConsole(c, r.out)
		return err
	}
	if r.err, err = openOutput(c.Stderr); err != nil {
		return err
	}
	r.in, err = openInput(c.Stdin, c.OnInput)
	return err
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
// bounds that. The relay is of no use afterwards, whatever Finish returns.
func (r *Relay) Finish(ctx context.Context) error {
	var errs []error
	if r.terminal != nil {
		errs = append(errs, r.terminal.close(ctx))
	}
	if r.in != nil {
		errs = append(errs, r.in.close())
	}
	return errors.Join(append(errs, r.out.close(ctx), r.err.close(ctx))...)
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

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts cmd and waits for its process, which the relay never does: ended
// is closed when it has ended.
type Start func(cmd *exec.Cmd) (ended <-chan struct{}, err error)

// How long a logger has: to say that it is ready, to write what it has after
// the end of its input, and then to follow SIGTERM.
const (
	readyTimeout = 30 * time.Second
	loggerGrace  = 8 * time.Second
	termGrace    = time.Second
)

// logger is the program that a binary:// URI names. It is started once, reads
// both streams from pipes, and ends by itself when they end. The pipes have no
// other reader: without the logger the container's writes fail with EPIPE, and
// when it is slow they block, as with runc.
type logger struct {
	path    string
	process *os.Process
	ended   <-chan struct{}
	grace   time.Duration // for what it has yet to write; loggerGrace
}

// isLogger says whether a stream's URI names a logger.
func isLogger(uri string) bool {
	return strings.HasPrefix(uri, "binary://") || strings.HasPrefix(uri, "binary-v2://")
}

// openLogger starts the logger of c.Stdout and waits until it is ready. The
// outputs are the pipes that it reads.
func openLogger(ctx context.Context, c Config) (l *logger, out, errs *output, err error) {
	u, err := url.Parse(c.Stdout)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("logger: %w", err)
	}
	if !filepath.IsAbs(u.Path) || c.Start == nil {
		return nil, nil, nil, fmt.Errorf("%w: %q does not name a program by its absolute path", ErrUnsupportedScheme, c.Stdout)
	}
	outR, outW, err := pipe(c.Terminal)
	if err != nil {
		return nil, nil, nil, err
	}
	defer outR.Close()
	errR, errW, err := pipe(false)
	if err != nil {
		return nil, nil, nil, errors.Join(err, outW.Close())
	}
	defer errR.Close()
	l, err = startLogger(ctx, u, c, outR, errR)
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("logger %s: %w", u.Path, err), outW.Close(), errW.Close())
	}
	return l, &output{sandbox: outW}, &output{sandbox: errW}, nil
}

// pipe makes a pipe whose reading end blocks, as programs expect, and whose
// writing end has deadlines if it is the shim that writes.
func pipe(shimWrites bool) (r, w *os.File, err error) {
	fds := make([]int, 2)
	if err := unix.Pipe2(fds, unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("logger: %w", os.NewSyscallError("pipe", err))
	}
	if shimWrites {
		if err := unix.SetNonblock(fds[1], true); err != nil {
			return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
		}
	}
	return os.NewFile(uintptr(fds[0]), "logger"), os.NewFile(uintptr(fds[1]), "logger"), nil
}

func startLogger(ctx context.Context, u *url.URL, c Config, stdout, stderr *os.File) (*logger, error) {
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd := exec.Command(u.Path, arguments(u.RawQuery)...)
	cmd.Env = []string{"CONTAINER_ID=" + c.ID, "CONTAINER_NAMESPACE=" + c.Namespace}
	cmd.ExtraFiles = []*os.File{stdout, stderr, tell} // 3, 4, 5
	ended, err := c.Start(cmd)
	if err != nil {
		return nil, errors.Join(err, tell.Close())
	}
	l := &logger{path: u.Path, process: cmd.Process, ended: ended, grace: loggerGrace}
	if err := tell.Close(); err != nil {
		return nil, errors.Join(err, l.kill())
	}
	if err := awaitReady(ctx, ready, u.Scheme); err != nil {
		return nil, errors.Join(err, l.kill())
	}
	return l, nil
}

// awaitReady waits for the end of the pipe, before which binary-v2 asks for a
// byte: the end alone may be that of a program that has crashed.
func awaitReady(ctx context.Context, ready *os.File, scheme string) error {
	limited, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	stop := context.AfterFunc(limited, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := ready.Read(make([]byte, 1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("not ready: %w", context.Cause(limited))
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case n == 0 && scheme == "binary-v2":
		return errors.New("it ended, or closed descriptor 5, without saying that it is ready")
	}
	return nil
}

// arguments are the query's keys and values in turn, as they stand there. Of a
// key that comes again only the first value counts.
func arguments(query string) []string {
	var args []string
	seen := make(map[string]bool)
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		value, verr := url.QueryUnescape(value)
		if pair == "" || seen[key] || err != nil || verr != nil {
			continue
		}
		seen[key] = true
		args = append(args, key, value)
	}
	return args
}

// close is for pipes that are closed on our side: the logger reads to their
// end and ends. One that doesn't is asked to, and then killed.
func (l *logger) close() error {
	if l == nil {
		return nil
	}
	defer func() { _ = l.process.Release() }()
	if l.endsWithin(l.grace) {
		return nil
	}
	_ = l.process.Signal(syscall.SIGTERM)
	if l.endsWithin(termGrace) {
		return nil
	}
	return errors.Join(fmt.Errorf("logger %s did not end with its input and was killed", l.path), l.kill())
}

func (l *logger) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.ended:
		return true
	case <-timer.C:
		return false
	}
}

func (l *logger) kill() error {
	if err := l.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill logger %s: %w", l.path, err)
	}
	<-l.ended
	return nil
}

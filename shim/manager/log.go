package manager

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// logFifo is the bundle's FIFO that containerd copies to its own log.
const logFifo = "log"

// openLog makes the FIFO the destination of both loggers and of standard error, where a crash would be written. A
// bundle without one is logged to standard error as it is.
func openLog(debug bool) error {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
		if err := log.SetLevel("debug"); err != nil {
			return fmt.Errorf("set the log level: %w", err)
		}
	}
	// Opened for both directions: it neither waits for a reader, nor breaks when containerd is away.
	fd, err := unix.Open(logFifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the log FIFO: %w", err)
	}
	if err := unix.Dup3(fd, int(os.Stderr.Fd()), 0); err != nil {
		return fmt.Errorf("redirect standard error to the log FIFO: %w", err)
	}
	w := &fifoWriter{write: func(p []byte) (int, error) { return unix.Write(fd, p) }}
	log.L.Logger.SetOutput(w)
	slog.SetDefault(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})))
	return nil
}

// fifoWriter drops what doesn't fit, and says later how much: a shim doesn't wait for a reader of its log.
type fifoWriter struct {
	write func([]byte) (int, error)

	mu      sync.Mutex // guards dropped
	dropped int
}

// Write writes p, which should be whole lines, or drops it. It reports success either way.
func (w *fifoWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropped > 0 {
		note := fmt.Sprintf("level=warning msg=\"%d log entries dropped while nobody read\"\n", w.dropped)
		if _, err := w.write([]byte(note)); err != nil {
			w.dropped++
			return len(p), nil
		}
		w.dropped = 0
	}
	if _, err := w.write(p); err != nil {
		w.dropped++
	}
	return len(p), nil
}

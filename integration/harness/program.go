package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// programDeadline bounds starting and stopping one of the world's daemons.
const programDeadline = 20 * time.Second

// ErrNotRunning is about a program that was not started, or has ended.
var ErrNotRunning = errors.New("not running")

// A Program is a daemon of the world. It can be started again after it ended; its log goes on in the same file.
type Program struct {
	Name    string
	LogFile string

	args  []string
	env   []string
	world *World
	ready func(context.Context) error // nil once it answers

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd ended
}

// Prepare is a further program of the world's, which the caller starts, and ends before the world does. It is ready once ready
// says so.
func (w *World) Prepare(name string, args []string, ready func(context.Context) error) *Program {
	return w.program(name, args, ready)
}

// Start starts the program and returns when it answers.
func (p *Program) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, programDeadline)
	defer cancel()
	done, err := p.launch()
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	err = poll(ctx, 20*time.Millisecond, func() (bool, error) {
		select {
		case <-done:
			cancel()
			return false, fmt.Errorf("ended at once; its log ends:\n%s", p.LogTail(3000))
		default:
		}
		err := p.ready(ctx)
		return err == nil, err
	})
	if err != nil {
		p.Kill()
		return fmt.Errorf("%s does not answer: %w\n%s", p.Name, err, p.LogTail(3000))
	}
	return nil
}

func (p *Program) launch() (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && !closed(p.done) {
		return nil, errors.New("already running")
	}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := p.world.Command(context.Background(), p.Name, p.args...)
	cmd.Env = append(cmd.Env, p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.world.start(cmd); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended is in its log
		close(done)
	}()
	p.cmd, p.done = cmd, done
	return done, nil
}

// Pid is 0 when the program is not running.
func (p *Program) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || closed(p.done) {
		return 0
	}
	return p.cmd.Process.Pid
}

// Stop asks the program to end and waits until it has. ErrNotRunning when there is none.
func (p *Program) Stop(ctx context.Context) error { return p.end(ctx, syscall.SIGTERM) }

// Kill ends the program as a crash would. Without one running it does nothing.
func (p *Program) Kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), programDeadline)
	defer cancel()
	if err := p.end(ctx, syscall.SIGKILL); !errors.Is(err, ErrNotRunning) {
		return err
	}
	return nil
}

func (p *Program) end(ctx context.Context, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, programDeadline)
	defer cancel()
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil || closed(done) {
		return fmt.Errorf("%s: %w", p.Name, ErrNotRunning)
	}
	if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s did not end by %v: %w", p.Name, s, ctx.Err())
	}
}

// LogTail is about the log's last n bytes, without what containerd says of its plugins.
func (p *Program) LogTail(n int) string {
	b, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	var kept strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "loading plugin") {
			kept.WriteString(line)
		}
	}
	return tail(kept.String(), n)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

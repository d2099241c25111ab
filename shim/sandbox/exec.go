package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// AddExec registers a process. It doesn't wake: StartExec does.
func (w *Workload) AddExec(ctx context.Context, id, exec string, config stdio.Config, process []byte) error {
	var spec specs.Process
	if err := json.Unmarshal(process, &spec); err != nil {
		return fmt.Errorf("exec %s: not a process specification: %w", exec, err)
	}
	spec.Terminal = config.Terminal // the request says what streams there are; clients leave it out of the specification
	e := &Exec{ID: exec, Terminal: config.Terminal, Stdio: config, process: &spec, ended: make(chan struct{})}
	e.probe = !e.Terminal && w.config.IsProbe(spec.Args)
	w.mu.Lock()
	c, err := w.container(id)
	switch {
	case err != nil:
	case c.state != lifecycle.Running:
		err = fmt.Errorf("container %s is %s: %w", id, c.state, ErrPrecondition)
	case c.execs[exec] != nil:
		err = fmt.Errorf("exec %s: %w", exec, ErrExists)
	default:
		c.execs[exec] = e
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	w.opts.Publish(runtime.TaskExecAddedEventTopic, &events.TaskExecAdded{ContainerID: id, ExecID: exec})
	return nil
}

// StartExec wakes the workload and starts the process; a probe of a sleeper is answered in its place. Its pid for containerd is the holder's, like the task's.
func (w *Workload) StartExec(ctx context.Context, id, exec string) error {
	c, e, err := w.exec(id, exec)
	if err != nil {
		return err
	}
	if e.probe {
		if answer, away := w.wellness(); away {
			return w.answerExec(ctx, c, e, answer)
		}
	}
	release, err := w.hold(ctx, "exec")
	if err != nil {
		return err
	}
	defer release()
	if err := w.claimExec(e); err != nil {
		return err
	}
	inside, err := w.launch(ctx, c, e)
	if err != nil {
		w.execEnded(c, e, failedStatus)
		return fmt.Errorf("exec %s: %w", exec, err)
	}
	w.mu.Lock()
	e.pid = inside
	w.mu.Unlock()
	w.opts.Publish(runtime.TaskExecStartedEventTopic, &events.TaskExecStarted{ContainerID: id, ExecID: exec, Pid: uint32(w.holder.Pid)})
	go w.awaitExec(c, e, inside)
	return nil
}

// claimExec counts the exec as live, once.
func (w *Workload) claimExec(e *Exec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.started || e.exit != nil {
		return fmt.Errorf("exec %s was started before: %w", e.ID, ErrPrecondition)
	}
	e.started, e.since = true, w.opts.Now()
	w.announce(nil)
	return nil
}

func (w *Workload) launch(ctx context.Context, c *Container, e *Exec) (int, error) {
	relay, err := stdio.Open(ctx, w.withLogger(c.ID, e.Stdio))
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	e.relay = relay
	w.mu.Unlock()
	stdin, stdout, stderr := relay.Files()
	return w.runsc.Exec(ctx, c.ID, runsc.ExecOptions{
		Process: e.process, ConsoleSocket: relay.ConsoleSocket(), IO: runsc.IO{Stdin: stdin, Stdout: stdout, Stderr: stderr},
	})
}

func (w *Workload) awaitExec(c *Container, e *Exec, inside int) {
	status, err := w.runsc.WaitExec(context.Background(), c.ID, inside)
	if err != nil { // the sandbox went away under it: it ended, or sleeps, and no exec survives a restore
		w.opts.Log.Info("exec ended with its sandbox", "exec", e.ID, "reason", err)
		status = killedStatus
	}
	w.execEnded(c, e, uint32(status))
}

// execEnded records the end of an exec, once.
func (w *Workload) execEnded(c *Container, e *Exec, status uint32) {
	e.once.Do(func() {
		w.mu.Lock()
		relay, started := e.relay, e.started
		w.mu.Unlock()
		e.letGo = func() error { return nil }
		if relay != nil {
			e.letGo = letGo(relay)
		}
		w.mu.Lock()
		e.exit = &Exit{Status: status, At: w.opts.Now()}
		w.announce(nil)
		at := e.exit.At
		w.mu.Unlock()
		if started {
			w.opts.Publish(runtime.TaskExitEventTopic, &events.TaskExit{
				ContainerID: c.ID, ID: e.ID, Pid: uint32(w.holder.Pid), ExitStatus: status, ExitedAt: protobuf.ToTimestamp(at),
			})
		}
		close(e.ended)
	})
}

func (w *Workload) exec(id, exec string) (*Container, *Exec, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, err := w.container(id)
	if err != nil {
		return nil, nil, fmt.Errorf("container %s: %w", id, err)
	}
	if e := c.execs[exec]; e != nil {
		return c, e, nil
	}
	return nil, nil, fmt.Errorf("exec %s: %w", exec, ErrNotFound)
}

func (w *Workload) killExec(ctx context.Context, c *Container, exec string, signal syscall.Signal) error {
	_, e, err := w.exec(c.ID, exec)
	if err != nil {
		return err
	}
	w.mu.Lock()
	pid, ended := e.pid, e.exit != nil
	w.mu.Unlock()
	switch {
	case ended:
		return fmt.Errorf("exec %s has ended: %w", exec, ErrNotFound)
	case pid == 0:
		return fmt.Errorf("exec %s has not started: %w", exec, ErrPrecondition)
	case signal == 0: // asks whether it is there
		return nil
	}
	err = w.runsc.Kill(ctx, c.ID, runsc.KillOptions{Signal: signal, Pid: pid})
	if errors.Is(err, runsc.ErrNotRunning) || errors.Is(err, runsc.ErrNotFound) {
		return fmt.Errorf("exec %s: %w", exec, ErrNotFound)
	}
	return err
}

// DeleteExec forgets an exec that has ended or never started.
func (w *Workload) DeleteExec(id, exec string) (Exit, error) {
	c, e, err := w.exec(id, exec)
	if err != nil {
		return Exit{}, err
	}
	w.mu.Lock()
	live := e.started && e.exit == nil
	w.mu.Unlock()
	if live {
		return Exit{}, fmt.Errorf("exec %s runs: %w", exec, ErrPrecondition)
	}
	w.execEnded(c, e, 0)
	if err := e.letGo(); err != nil {
		w.opts.Log.Debug("output", "exec", e.ID, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(c.execs, exec)
	return *e.exit, nil
}

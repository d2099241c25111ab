package sandbox

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// Whoever only asks whether a sleeper is well is told so without a wake: it was when it fell asleep, and is as it was. One
// that is blocked is not.

// wellness is what a probe is told.
type wellness struct {
	state string
	well  bool
	text  string
}

// status is that of a command that asks.
func (a wellness) status() uint32 {
	if a.well {
		return 0
	}
	return 1
}

// wellness answers for a workload that is away; one that is awake, or about to be, answers for itself.
func (w *Workload) wellness() (answer wellness, away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.root().state != lifecycle.Running {
		return wellness{}, false
	}
	switch w.state {
	case lifecycle.Asleep, lifecycle.Hibernating:
		return wellness{w.state.String(), true, "it was well when it fell asleep"}, true
	case lifecycle.Blocked:
		return wellness{w.state.String(), false, fmt.Sprintf("its state can't be restored (%s); see hibernatectl inspect", w.last.wake.GetDetail())}, true
	}
	return wellness{}, false
}

// answerExec ends an exec that never ran, as the command would have.
func (w *Workload) answerExec(ctx context.Context, c *Container, e *Exec, answer wellness) error {
	if err := w.claimExec(e); err != nil {
		return err
	}
	relay, err := stdio.Open(ctx, w.withLogger(c.ID, e.Stdio))
	if err != nil {
		w.execEnded(c, e, failedStatus)
		return fmt.Errorf("exec %s: %w", e.ID, err)
	}
	w.mu.Lock()
	e.relay = relay
	w.mu.Unlock()
	if _, out, _ := relay.Files(); out != nil {
		if _, err := out.WriteString(answer.state + ": " + answer.text + "\n"); err != nil {
			w.opts.Log.Debug("answer to a probe", "exec", e.ID, "error", err)
		}
	}
	w.opts.Publish(runtime.TaskExecStartedEventTopic, &events.TaskExecStarted{ContainerID: c.ID, ExecID: e.ID, Pid: uint32(w.holder.Pid)})
	go w.execEnded(c, e, answer.status())
	return nil
}

// runningProbes hinder a hibernation, which they would not survive, and are no use that keeps it awake. The caller holds w.mu.
func (w *Workload) runningProbes() []*shimv1.Reason {
	for _, c := range w.containers {
		for _, e := range c.execs {
			if e.probe && e.started && e.exit == nil {
				return []*shimv1.Reason{reason("probe", "a command runs in it that asks whether it is well")}
			}
		}
	}
	return nil
}

// ignored is the configuration's traffic that is no activity, as the link knows it.
func ignored(list []config.Filter) (out []network.Filter) {
	for _, f := range list {
		i := network.Filter{Port: f.Port, From: f.From}
		switch f.Protocol {
		case "tcp":
			i.Protocol = unix.IPPROTO_TCP
		case "udp":
			i.Protocol = unix.IPPROTO_UDP
		}
		out = append(out, i)
	}
	return out
}

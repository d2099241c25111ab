package runsc

import (
	"context"
	"encoding/json"
	"fmt"
)

// Status is runsc's opinion of a container. It may say running for a sandbox
// whose restore has not ended: keep your own.
type Status string

// The values of Status.
const (
	Creating Status = "creating"
	Created  Status = "created"
	Running  Status = "running"
	Paused   Status = "paused"
	Stopped  Status = "stopped"
)

// State is what `runsc state` prints.
type State struct {
	ID          string            `json:"id"`
	Status      Status            `json:"status"`
	Pid         int               `json:"pid"` // of the sandbox process, -1 when stopped
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations"`
}

// State asks for a container's state; ErrNotFound when there is none.
func (c *Client) State(ctx context.Context, id string) (State, error) {
	out, err := c.run(ctx, call{command: "state", id: id, timeout: c.Timeouts.control()})
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(out, &s); err != nil {
		return State{}, fmt.Errorf("runsc state %s: %w", id, err)
	}
	return s, nil
}

// Process is a process of a container; Pid is the one seen inside.
type Process struct{ Pid int }

// Processes lists the processes of a running or paused container.
func (c *Client) Processes(ctx context.Context, id string) ([]Process, error) {
	args := []string{"--format=json"}
	out, err := c.run(ctx, call{command: "ps", id: id, args: args, timeout: c.Timeouts.control()})
	if err != nil {
		return nil, err
	}
	var pids []int
	if err := json.Unmarshal(out, &pids); err != nil {
		return nil, fmt.Errorf("runsc ps %s: %w", id, err)
	}
	processes := make([]Process, len(pids))
	for i, pid := range pids {
		processes[i].Pid = pid
	}
	return processes, nil
}

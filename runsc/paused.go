package runsc

import (
	"bytes"
	"context"
	"errors"
)

// Paused says whether a sandbox is paused by the stacks of its tasks, whatever runsc has noted: a pause or resume that was killed
// has noted nothing, and may have been done. One whose processes are all stopped by signals looks paused, too.
func (c *Client) Paused(ctx context.Context, id string) (bool, error) {
	out, err := c.run(ctx, call{command: "debug", args: []string{"--stacks"}, id: id, timeout: c.Timeouts.control()})
	if err != nil {
		return false, err
	}
	tasks, stopped := countTasks(out)
	if tasks == 0 {
		return false, &Error{Command: "debug", ID: id, Message: "its stacks show no task", Kind: errNoTask}
	}
	return stopped == tasks, nil
}

var errNoTask = errors.New("no task")

// countTasks counts the goroutines of tasks, and those of them that are stopped.
func countTasks(stacks []byte) (tasks, stopped int) {
	for goroutine := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if !bytes.Contains(goroutine, []byte("kernel.(*Task).run(")) {
			continue
		}
		tasks++
		if bytes.Contains(goroutine, []byte("kernel.(*Task).doStop(")) {
			stopped++
		}
	}
	return tasks, stopped
}

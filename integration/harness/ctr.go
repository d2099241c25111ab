package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Runtime is the name of the runtime under test.
const Runtime = "io.containerd.hibernate.v1"

// A Container is what Run is asked for. ID and Image are needed.
type Container struct {
	ID    string
	Image string   // redis, nginx, python3, testserver; imported when it is not there yet
	Args  []string // instead of what the image runs

	CNI    bool   // a network by CNI, as ctr makes it
	NetNS  string // else a network namespace by its path, as seen inside the world: Pod.Path
	Host   bool   // else the node's own network
	Detach bool   // return when it runs; otherwise when it ended, with its output

	Annotations map[string]string // keys without the prefix io.containerd.hibernate/
	Env         []string
	Runtime     string   // instead of Runtime
	Flags       []string // further flags of ctr run
}

// Ctr runs ctr against the world's containerd, in its namespace, with a deadline of a minute where ctx has none.
func (w *World) Ctr(ctx context.Context, args ...string) (string, error) {
	return w.Output(ctx, "ctr", append([]string{"--address", w.Address(), "--namespace", w.Namespace, "--connect-timeout", "10s"}, args...)...)
}

// Reference is the name that an image of ours has in containerd.
func Reference(image string) string { return "hibernate.test/" + image + ":1" }

// Import imports and unpacks one of the images of .tools/images. It may be called again.
func (w *World) Import(ctx context.Context, image string) error {
	file := filepath.Join(w.root, ".tools/images", image+".tar")
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("image %s: %w: run 'make images'", image, err)
	}
	known, err := w.Ctr(ctx, "images", "list", "--quiet")
	if err != nil {
		return err
	}
	for line := range strings.Lines(known) {
		if strings.TrimSpace(line) == Reference(image) {
			return nil
		}
	}
	_, err = w.Ctr(ctx, "images", "import", file)
	return err
}

// Run starts a container with `ctr run` and returns its output.
func (w *World) Run(ctx context.Context, c Container) (string, error) {
	if c.Runtime == "" {
		if err := checkPrograms(w.root, "containerd-shim-hibernate-v1", "hibernate-helper"); err != nil {
			return "", err
		}
	}
	if err := w.Import(ctx, c.Image); err != nil {
		return "", err
	}
	return w.Ctr(ctx, w.RunArgs(c)...)
}

// RunArgs are the arguments of ctr that run a container, for a caller who wants the process itself (Command).
func (w *World) RunArgs(c Container) []string {
	runtime := c.Runtime
	if runtime == "" {
		runtime = Runtime
	}
	args := []string{"run", "--runtime", runtime, "--runtime-config-path", w.ConfigFile()}
	switch {
	case c.CNI:
		args = append(args, "--cni")
	case c.NetNS != "":
		args = append(args, "--with-ns", "network:"+c.NetNS)
	case c.Host:
		args = append(args, "--net-host")
	}
	if c.Detach {
		args = append(args, "--detach")
	}
	for k, v := range c.Annotations {
		args = append(args, "--annotation", "io.containerd.hibernate/"+k+"="+v)
	}
	for _, e := range c.Env {
		args = append(args, "--env", e)
	}
	args = append(args, c.Flags...)
	args = append(args, Reference(c.Image), c.ID)
	return append(args, c.Args...)
}

var execs struct {
	sync.Mutex
	n int
}

// Exec runs a program inside a container and returns its output. A status other than 0 is an error.
func (w *World) Exec(ctx context.Context, id string, args ...string) (string, error) {
	execs.Lock()
	execs.n++
	name := fmt.Sprintf("exec%d", execs.n)
	execs.Unlock()
	return w.Ctr(ctx, append([]string{"tasks", "exec", "--exec-id", name, id}, args...)...)
}

// Kill sends a signal (a name, as TERM) to a container's init. ctr takes the signal for the end: it removes the container's
// network by CNI first, whatever the signal. For one that a program survives, run it with NetNS.
func (w *World) Kill(ctx context.Context, id, signal string) error {
	_, err := w.Ctr(ctx, "tasks", "kill", "--signal", signal, id)
	return err
}

// A Task is what containerd says of a container's task. State is CREATED, RUNNING, PAUSED, STOPPED; empty without a task.
type Task struct {
	Pid   int
	State string
}

// Task asks containerd. No task is no error.
func (w *World) Task(ctx context.Context, id string) (Task, error) {
	out, err := w.Ctr(ctx, "tasks", "list")
	if err != nil {
		return Task{}, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != id {
			continue
		}
		pid, err := strconv.Atoi(f[1])
		return Task{pid, f[2]}, err
	}
	return Task{}, nil
}

// Remove ends a container by SIGKILL, and removes its task, network and snapshot. One that isn't there is no error.
func (w *World) Remove(ctx context.Context, id string) error {
	task, err := w.Task(ctx, id)
	if err != nil {
		return err
	}
	netns, err := openNamespace(task.Pid) // kept until CNI is done with it
	if err != nil {
		return err
	}
	defer netns.Close()
	if task.State != "" {
		if _, err := w.Ctr(ctx, "tasks", "delete", "--force", id); err != nil {
			return err
		}
	}
	if err := w.removeNetwork(ctx, id, netns.path()); err != nil {
		return err
	}
	containers, err := w.Containers(ctx)
	if err != nil || !slices.Contains(containers, id) {
		return err
	}
	_, err = w.Ctr(ctx, "containers", "delete", id)
	return err
}

// Containers are the ids of all containers.
func (w *World) Containers(ctx context.Context) ([]string, error) {
	out, err := w.Ctr(ctx, "containers", "list", "--quiet")
	return strings.Fields(out), err
}

// RemoveAll removes every container.
func (w *World) RemoveAll(ctx context.Context) error {
	ids, err := w.Containers(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := w.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove %s: %w", id, err)
		}
	}
	return nil
}

// WaitTask waits until containerd says that a task is in a state; empty is none.
func (w *World) WaitTask(ctx context.Context, id, state string) error {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	return poll(ctx, 50*time.Millisecond, func() (bool, error) {
		now, err := w.Task(ctx, id)
		if err == nil && now.State != state {
			err = fmt.Errorf("task %s is %q, not %q", id, now.State, state)
		}
		return err == nil, err
	})
}

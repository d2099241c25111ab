package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Kubectl runs it on the node, and returns what it says.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	out, err := c.Output(ctx, "kubectl", c.kubectl(args)...)
	return strings.TrimSpace(out), err
}

// KubectlCommand is Kubectl's process, for what goes on and on, as logs --follow.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.World.Command(ctx, "kubectl", c.kubectl(args)...)
}

func (c *Cluster) kubectl(args []string) []string {
	return append([]string{"--kubeconfig", c.file("kubeconfig"), "--cache-dir", c.file("cache")}, args...)
}

// Apply creates objects, or changes them.
func (c *Cluster) Apply(ctx context.Context, objects ...map[string]any) error {
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(c.dir, "apply-*.json")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(list)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		_, err = c.Kubectl(ctx, "apply", "--filename", f.Name())
	}
	return err
}

// Until asks again and again until the answer is want, as long as ctx lasts, or a minute.
func (c *Cluster) Until(ctx context.Context, want string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		said, err := c.Kubectl(ctx, args...)
		if err == nil && said == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kubectl %s says %q, want %q: %w", strings.Join(args, " "), said, want, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// ctl runs the hibernatectl that lies beside this program.
func ctl(file string) func(context.Context, ...string) error {
	return func(ctx context.Context, args ...string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(self), "hibernatectl"), append([]string{"--config", file}, args...)...)
		cmd.WaitDelay, cmd.Env = time.Second, childEnv(os.Environ())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	}
}

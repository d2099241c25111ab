package service

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"

	"github.com/containerd/containerd/v2/pkg/shim"
)

// leaveSocket gives up the shim's address at once. containerd may start a container of the same id, and so at the same
// address, as soon as Shutdown is answered: its `start` must not find this shim there, and this one must not remove the
// next one's socket when it ends a moment later. containerd's library would do that; the flag names the socket that it
// removes instead, when set.
func leaveSocket(address string) error {
	if err := flag.Set("socket", "/nonexistent/shim.sock"); err != nil {
		return fmt.Errorf("leave the socket: %w", err)
	}
	if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("leave the socket: %w", err)
	}
	return nil
}

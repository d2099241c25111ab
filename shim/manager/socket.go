package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/shim"
)

// listen makes the socket of a new daemon. It returns nil when a daemon already answers at the address: that of the
// group. A socket that nobody answers at is one that a killed daemon left, and is replaced.
func listen(address string) (*os.File, error) {
	l, err := shim.NewSocket(address)
	if shim.SocketEaddrinuse(err) {
		if shim.CanConnect(address) {
			return nil, nil
		}
		if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the socket of a daemon that is gone: %w", err)
		}
		l, err = shim.NewSocket(address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}
	// The file is a duplicate. Closing the listener would remove the path, which the daemon is to be found by.
	defer l.Close()
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate the socket: %w", err), shim.RemoveSocket(address))
	}
	return f, nil
}

// removeStaleSocket removes the socket of the bundle's daemon when nobody answers at it. A group's daemon that lives
// keeps its own, whichever of its containers is deleted.
func removeStaleSocket(bundle string) error {
	address, err := shim.ReadAddress(filepath.Join(bundle, AddressFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, shim.ErrNoAddress) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the socket: %w", err)
	}
	if shim.CanConnect(address) {
		return nil
	}
	if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket: %w", err)
	}
	return nil
}

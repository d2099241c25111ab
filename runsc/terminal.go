package runsc

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/console"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// newTerminal opens a pty, sends its master to the unix socket at path in the
// way that runc and runsc do (one byte string with the descriptor), and returns
// the other end.
func newTerminal(path string, size *specs.Box) (*os.File, error) {
	master, name, err := console.NewPty()
	if err != nil {
		return nil, fmt.Errorf("new pty: %w", err)
	}
	defer master.Close()
	if size != nil {
		if err := master.Resize(console.WinSize{Height: uint16(size.Height), Width: uint16(size.Width)}); err != nil {
			return nil, fmt.Errorf("resize pty: %w", err)
		}
	}
	tty, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open pty: %w", err)
	}
	if err := sendMaster(path, name, int(master.Fd())); err != nil {
		return nil, errors.Join(err, tty.Close())
	}
	return tty, nil
}

func sendMaster(path, name string, fd int) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("console socket: %w", err)
	}
	defer conn.Close()
	if _, _, err := conn.WriteMsgUnix([]byte(name), unix.UnixRights(fd), nil); err != nil {
		return fmt.Errorf("console socket %s: %w", path, err)
	}
	return nil
}

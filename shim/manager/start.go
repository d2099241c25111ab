package manager

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/internal/undo"
)

// Files of `start` in the bundle.
const (
	// AddressFile holds the address of the container's daemon, its group's where that was there already.
	AddressFile = "address"
	pidFile     = "shim.pid"
)

// runStart answers `start`: one write to stdout, when all is done. The working directory is the bundle.
func runStart(ctx context.Context, inv invocation, stdin io.Reader, stdout io.Writer) error {
	r, err := readRequest(inv, stdin)
	if err != nil {
		return err
	}
	bundle, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the bundle: %w", err)
	}
	address, err := start(namespaces.WithNamespace(ctx, r.namespace), &r, bundle)
	if err != nil {
		return err
	}
	answer, err := r.reply(address)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if _, err := stdout.Write(answer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// start makes a daemon, unless the group has one, and returns its address. On error nothing is left.
func start(ctx context.Context, r *request, bundle string) (address string, err error) {
	group, err := groupOf(bundle, r.id)
	if err != nil {
		return "", err
	}
	if address, err = shim.CreateSocketAddress(ctx, r.socketDir, r.grpcAddress, group, false); err != nil {
		return "", fmt.Errorf("name the socket: %w", err)
	}
	if err := r.options.Save(bundle); err != nil {
		return "", err
	}
	socket, err := listen(address)
	if err != nil {
		return "", err
	}
	if socket == nil { // containerd 1.6 looks for the address in each bundle when it comes back
		return address, writeFiles(bundle, r.socketDir, address)
	}
	defer socket.Close()
	var u undo.Stack
	defer func() {
		if err != nil {
			_ = u.Run(context.WithoutCancel(ctx))
		}
	}()
	u.Push("remove the socket", func(context.Context) error { return shim.RemoveSocket(address) })
	// Before the daemon is there: it reads its own address.
	if err := writeFiles(bundle, r.socketDir, address); err != nil {
		return "", err
	}
	pid, err := spawn(r, bundle, socket, &u)
	if err != nil {
		return "", err
	}
	if err := shim.WritePidFile(filepath.Join(bundle, pidFile), pid); err != nil {
		return "", fmt.Errorf("write %s: %w", pidFile, err)
	}
	u.Release()
	return address, nil
}

// writeFiles writes the daemon's address, and the link "s" by which containerd's library finds the sockets' directory
// when the daemon ends.
func writeFiles(bundle, socketDir, address string) error {
	if err := atomicfile.Write(filepath.Join(bundle, AddressFile), []byte(address), 0o600, atomicfile.Options{}); err != nil {
		return err
	}
	link := filepath.Join(bundle, "s")
	if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replace the link to the sockets' directory: %w", err)
	}
	if err := os.Symlink(socketDir, link); err != nil {
		return fmt.Errorf("link the sockets' directory: %w", err)
	}
	return nil
}

package runsc

import (
	"context"
	"os"
)

// TarRootfsUpper writes a tar archive of what the container has changed in its
// root filesystem to out, which may be a file or a pipe. The sandbox must run.
// runsc would put a line of its own before an archive on its standard output,
// so it gets out under a name.
func (c *Client) TarRootfsUpper(ctx context.Context, id string, out *os.File) error {
	_, err := c.run(ctx, call{
		command: "tar", id: id, args: []string{"rootfs-upper", "--file=/proc/self/fd/3"}, extra: []*os.File{out},
		timeout: c.Timeouts.checkpoint(),
	})
	return err
}

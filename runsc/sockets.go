package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Socket is a socket of the sandbox that is not on a loopback address: one that
// others can reach, a listening TCP one or a UDP one with a port, or a TCP connection,
// which has a peer.
type Socket struct {
	Proto    string     `json:"proto"` // tcp or udp, for both families
	Addr     netip.Addr `json:"addr"`
	Port     uint16     `json:"port"`
	Peer     netip.Addr `json:"peer"`
	PeerPort uint16     `json:"peerPort"`
}

// Sockets runs the ports role of hibernate-helper inside the container and reads
// its answer. The container needs a mounted /proc and nothing else.
func (c *Client) Sockets(ctx context.Context, id string, helper *os.File) ([]Socket, error) {
	process := &specs.Process{Args: []string{"hibernate-helper", "ports"}, Cwd: "/"}
	var out bytes.Buffer
	status, err := c.Output(ctx, id, ExecOptions{Process: process, Executable: helper}, &out)
	if err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, fmt.Errorf("sockets of %s: helper ended with status %d: %.200s", id, status, out.String())
	}
	return parseSockets(&out)
}

func parseSockets(r io.Reader) ([]Socket, error) {
	var sockets []Socket
	for dec := json.NewDecoder(r); ; {
		var s Socket
		switch err := dec.Decode(&s); {
		case errors.Is(err, io.EOF):
			return sockets, nil
		case err != nil:
			return nil, fmt.Errorf("sockets: %w", err)
		}
		sockets = append(sockets, s)
	}
}

package network

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

const (
	outerName = "hib0" // the link's end in P
	innerName = "eth0" // the link's end in I
	tableName = "hibernate"

	// MarkSandbox routes a packet of P to the sandbox, MarkLocal to P's own
	// sockets. Both are OR-ed into the mark's other bits.
	MarkSandbox uint32 = 0x10000000
	MarkLocal   uint32 = 0x20000000
	markMask    uint32 = 0x30000000

	tableSandbox = 4242001
	tableLocal   = 4242002

	prefSandbox     = 10
	prefLocal       = 11
	prefKernelLocal = 100 // where the kernel's rule 0 is moved to

	// ProxyPortLow and ProxyPortHigh bound the source ports of [Dial], out of
	// the range that clients take theirs from.
	ProxyPortLow  = 10000
	ProxyPortHigh = 32767

	keptBytes  = 4 << 20         // per neighbour, while the sandbox is away, with what the kernel adds to each: 1 MiB of packets of 400 bytes or more
	netlinkMax = 5 * time.Second // the longest that one netlink request may take
)

// outerMAC is the same on every node, so that the neighbour a checkpoint holds stays right.
var outerMAC = net.HardwareAddr{0x02, 0x68, 0x69, 0x62, 0x2a, 0x01}

var (
	// ErrNoNetwork: no interface but loopback has an address.
	ErrNoNetwork = errors.New("the pod's namespace has no network")
	// ErrHostNetwork: the pod's namespace is the one this process runs in.
	ErrHostNetwork = errors.New("the pod uses the host's network")
	// ErrShared: another workload's link is in this namespace.
	ErrShared = errors.New("the pod's namespace already holds another workload's link")
	// ErrNoGate: the gate's table is not there, or is not as this package makes it.
	ErrNoGate = errors.New("the gate is not in place")
)

// ErrMesh says that P holds somebody else's nat or mark rules, which the gate's
// would interfere with.
type ErrMesh struct {
	Found []string // one description a rule or table
}

// Error names what was found.
func (e *ErrMesh) Error() string {
	return fmt.Sprintf("foreign nat or mark rules in the pod's namespace: %s", strings.Join(e.Found, "; "))
}

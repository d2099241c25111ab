package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The node tracks connections, and remembers those of the pod that had an address before for up to days. Who then comes from
// the same port is taken for an old friend: judged by a state that is over, or sent where the old one was. An address is of a
// new holder when a container starts there that sleeps on nothing; that it then goes to sleep and wakes changes nothing, and
// its connections must not be forgotten.

// ForgetEarlier removes what the node tracks of connections of the pod's addresses, but
// for those that sockets in P have now. It is for a link whose sandbox has no connections yet, or none that can go on. It returns
// how many were removed. A node that tracks nothing has nothing to forget.
func (l *Link) ForgetEarlier(ctx context.Context) (int, error) {
	n, err := l.forgetEarlier(ctx)
	if err != nil {
		return n, fmt.Errorf("forget an earlier holder's connections: %w", err)
	}
	return n, nil
}

func (l *Link) forgetEarlier(ctx context.Context) (n int, err error) {
	var h *netlink.Handle
	err = l.onNode(func() (err error) {
		if tracking() {
			h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		}
		return err
	})
	if err != nil || h == nil {
		return 0, err
	}
	defer h.Close()
	if err := h.SetSocketTimeout(netlinkMax); err != nil {
		return 0, err
	}
	own := earlier{has: l.attachment.has}
	if own.live, err = liveSockets(l.pod); err != nil {
		return 0, err
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		removed, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, own)
		n += int(removed)
		if err := errors.Join(ctx.Err(), err); err != nil {
			return n, err
		}
	}
	return n, nil
}

// onNode runs fn on a thread in the node's namespace.
func (l *Link) onNode(fn func() error) error {
	if l.node != nil {
		return enter(l.node, fn)
	}
	return fn()
}

// tracking says whether this namespace tracks any connection at all: to look at none of them costs nothing.
func tracking() bool {
	count, err := readSysctl("net/netfilter/nf_conntrack_count")
	return err == nil && count != "0"
}

// earlier matches what is tracked of an address, and is of no socket that lives.
type earlier struct {
	has  func(netip.Addr) bool
	live map[endpoints]bool
}

// endpoints are a socket's of P: of one that is not connected, the peer's is not valid.
type endpoints struct {
	protocol  uint8
	own, peer netip.AddrPort
}

// MatchConntrackFlow looks at both directions: of a published port, only the answer's has the pod's address.
func (e earlier) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return e.stale(f.Forward) || e.stale(f.Reverse)
}

func (e earlier) stale(t netlink.IPTuple) bool {
	src, dst := netip.AddrPortFrom(toAddr(t.SrcIP), t.SrcPort), netip.AddrPortFrom(toAddr(t.DstIP), t.DstPort)
	for _, way := range [][2]netip.AddrPort{{src, dst}, {dst, src}} {
		own, peer := way[0], way[1]
		if !e.has(own.Addr()) {
			continue
		}
		wildcard := netip.AddrPortFrom(netip.Addr{}, own.Port())
		if !e.live[endpoints{t.Protocol, own, peer}] && !e.live[endpoints{t.Protocol, wildcard, netip.AddrPort{}}] {
			return true
		}
	}
	return false
}

// liveSockets are those of P's kernel: connections of TCP, and ports of UDP.
func liveSockets(pod *side) (map[endpoints]bool, error) {
	live := make(map[endpoints]bool)
	err := enter(pod.ns, func() error {
		for name, protocol := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "tcp6": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "udp6": unix.IPPROTO_UDP} {
			data, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(data)) {
				if own, peer, ok := parseSocket(line); ok && (peer.Port() != 0 || protocol == unix.IPPROTO_UDP) {
					live[liveEndpoints(protocol, own, peer)] = true
				}
			}
		}
		return nil
	})
	return live, err
}

func liveEndpoints(protocol uint8, own, peer netip.AddrPort) endpoints {
	if peer.Port() == 0 {
		return endpoints{protocol, netip.AddrPortFrom(netip.Addr{}, own.Port()), netip.AddrPort{}}
	}
	return endpoints{protocol, own, peer}
}

// parseSocket reads a line of /proc/net/tcp and its like: words of 32 bits in the machine's order, then a port.
func parseSocket(line string) (own, peer netip.AddrPort, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return own, peer, false
	}
	own, ok1 := parseEnd(fields[1])
	peer, ok2 := parseEnd(fields[2])
	return own, peer, ok1 && ok2
}

func parseEnd(s string) (netip.AddrPort, bool) {
	address, port, ok := strings.Cut(s, ":")
	var p uint16
	if n, err := fmt.Sscanf(port, "%x", &p); !ok || n != 1 || err != nil || len(address) != 8 && len(address) != 32 {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, 0, 16)
	for ; len(address) > 0; address = address[8:] {
		var word uint32
		if n, err := fmt.Sscanf(address[:8], "%x", &word); n != 1 || err != nil {
			return netip.AddrPort{}, false
		}
		raw = binary.NativeEndian.AppendUint32(raw, word)
	}
	return netip.AddrPortFrom(toAddr(raw), p), true
}

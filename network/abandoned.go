package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// Abandoned tells whether the TCP socket in a namespace that is bound to local and connected to remote's port is nobody's any
// more: its process has closed it, or is gone. The kernel goes on with such a connection, and says no more to the other side than
// that one half of it has ended. One that isn't found is not called abandoned. ns stays the caller's.
func Abandoned(ns *os.File, local, remote netip.AddrPort) (abandoned bool, err error) {
	err = enter(ns, func() error {
		s, err := netlink.SocketGet(net.TCPAddrFromAddrPort(local), net.TCPAddrFromAddrPort(remote))
		if err != nil {
			return fmt.Errorf("socket %s to %s: %w", local, remote, err)
		}
		found := s.ID.SourcePort == local.Port() && s.ID.DestinationPort == remote.Port()
		abandoned = found && s.INode == 0
		return nil
	})
	return abandoned, err
}

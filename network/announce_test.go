package network_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hibernate-runtime/hibernate/network"
)

// A neighbour that knows an earlier card of the address learns of the new one, by ARP and by neighbour discovery.
func TestAnnounceTeachesNeighbours(t *testing.T) {
	w := newWorld(t)
	address6 := netip.MustParseAddr("fd99::2")
	h := handle(t, w.client)
	eth0 := get(t, h, "eth0")
	stale := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	w.att = attachmentOf(t, w)
	w.att.Addresses = append(w.att.Addresses, netip.PrefixFrom(address6, 64))
	l := w.open(t)
	for range 3 {
		for _, a := range []netip.Addr{podAddr, address6} {
			must(t, h.NeighSet(neighbour(eth0.Attrs().Index, a, stale)))
		}
		must(t, l.Announce(t.Context()))
		for _, a := range []netip.Addr{podAddr, address6} {
			eventually(t, "the client knows the card of "+a.String(), func() bool {
				if have := cardOf(t, h, eth0.Attrs().Index, a); have.String() == w.att.MAC {
					return true
				}
				must(t, l.Announce(t.Context())) // a kernel heeds none that comes within a second of the entry's making
				time.Sleep(100 * time.Millisecond)
				return false
			})
		}
	}
}

func attachmentOf(t *testing.T, w *world) *network.Attachment {
	t.Helper()
	a, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	return a
}

func neighbour(index int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, State: netlink.NUD_REACHABLE, IP: a.AsSlice(), HardwareAddr: mac}
}

func cardOf(t *testing.T, h *netlink.Handle, index int, a netip.Addr) net.HardwareAddr {
	t.Helper()
	list, err := h.NeighList(index, netlink.FAMILY_ALL)
	must(t, err)
	for _, n := range list {
		if n.IP.Equal(a.AsSlice()) {
			return n.HardwareAddr
		}
	}
	return nil
}

package network_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// track has the node remember a connection, as it was sent and as it is answered.
func track(t *testing.T, ns string, protocol uint8, src, dst, answers string) {
	t.Helper()
	from, to, by := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst), netip.MustParseAddrPort(answers)
	flow := &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: 600,
		Forward: netlink.IPTuple{
			Protocol: protocol, SrcIP: from.Addr().AsSlice(), SrcPort: from.Port(), DstIP: to.Addr().AsSlice(), DstPort: to.Port(),
		},
		Reverse: netlink.IPTuple{
			Protocol: protocol, SrcIP: by.Addr().AsSlice(), SrcPort: by.Port(), DstIP: from.Addr().AsSlice(), DstPort: from.Port(),
		},
	}
	if protocol == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	must(t, tracker(t, ns).ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
}

func tracker(t *testing.T, path string) *netlink.Handle {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(int(f.Fd())), unix.NETLINK_NETFILTER)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

func tracked(t *testing.T, ns string) (list []string) {
	t.Helper()
	flows, err := tracker(t, ns).ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	must(t, err)
	for _, f := range flows {
		list = append(list, net.JoinHostPort(f.Forward.DstIP.String(), ""))
	}
	return list
}

// What the node remembers of an earlier holder of the pod's address goes, also where only the answers come from it. What is of
// others stays, and what a socket in the pod has now.
func TestEarlierHoldersAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.nodeToo = true
	// A process of another container in the pod, connected and bound.
	ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp4", clientAddr.String()+":0") })
	defer ln.Close()
	live := inside(t, w.pod, func() (net.Conn, error) { return net.Dial("tcp4", ln.Addr().String()) })
	defer live.Close()
	bound := inside(t, w.pod, func() (net.PacketConn, error) { return net.ListenPacket("udp4", podAddr.String()+":5353") })
	defer bound.Close()

	l := w.open(t)
	if n, err := l.ForgetEarlier(t.Context()); n != 0 || err != nil {
		t.Fatalf("of nothing, %d were removed: %v", n, err)
	}
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	other, pod := "10.99.0.9:80", podAddr.String()
	for range 3 {
		stale := []struct {
			protocol          uint8
			src, dst, answers string
		}{
			{tcp, "10.99.0.3:40000", pod + ":80", pod + ":80"},
			{tcp, "10.1.1.1:40001", "10.99.0.1:8080", pod + ":80"}, // published
			{tcp, pod + ":40002", "10.1.1.1:443", "10.1.1.1:443"},
			{udp, "10.99.0.3:40003", pod + ":53", pod + ":53"},
		}
		for _, s := range stale {
			track(t, w.node, s.protocol, s.src, s.dst, s.answers)
		}
		track(t, w.node, tcp, "10.99.0.3:40000", other, other)
		track(t, w.node, tcp, live.LocalAddr().String(), ln.Addr().String(), ln.Addr().String())
		track(t, w.node, udp, "10.99.0.3:40004", pod+":5353", pod+":5353")
		n, err := l.ForgetEarlier(t.Context())
		if n != len(stale) || err != nil {
			t.Errorf("%d were removed, %v; want %d", n, err, len(stale))
		}
		if left := tracked(t, w.node); len(left) != 3 {
			t.Errorf("left: %v; want that of %s, and of the two sockets", left, other)
		}
		must(t, tracker(t, w.node).ConntrackTableFlush(netlink.ConntrackTable))
	}
}

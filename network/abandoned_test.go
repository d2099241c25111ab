package network_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// A client that has ended its half is still there; one that has closed is not, though the other side is told the same.
func TestClosedClientsAreTold(t *testing.T) {
	w := newWorld(t)
	ns, err := os.Open(w.pod)
	must(t, err)
	defer ns.Close()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln := inside(t, w.pod, func() (net.Listener, error) { return net.Listen("tcp", at) })
		defer ln.Close()
		c := inside(t, w.pod, func() (net.Conn, error) { return net.DialTimeout("tcp", ln.Addr().String(), 10*time.Second) })
		got, err := ln.Accept()
		must(t, err)
		defer got.Close()
		client, server := netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(ln.Addr().String())
		abandoned := func() bool {
			a, err := network.Abandoned(ns, client, server)
			must(t, err)
			return a
		}
		if abandoned() {
			t.Errorf("%s: an open client is called abandoned", at)
		}
		must(t, c.(*net.TCPConn).CloseWrite())
		if abandoned() {
			t.Errorf("%s: one that has ended its half is called abandoned", at)
		}
		must(t, c.Close())
		eventually(t, "its client is gone", func() bool { return abandoned() })
	}
}

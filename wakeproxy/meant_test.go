package wakeproxy

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

// A listener that has all ports dials the one that each connection was made to.
func TestListenerOfAllPortsDialsTheOneMeant(t *testing.T) {
	r := newRig(t, echo)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.proxy.Serve(ctx, r.file, 0) }()
	c := r.dial()
	if _, err := c.Write([]byte("for that port")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(c); err != nil || got != "for that port" {
		t.Fatalf("%q, %v", got, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	ends := r.observer.ends()
	if want := netip.MustParseAddrPort(r.front).Port(); len(ends) != 1 || ends[0].Port != want || r.dialer.port.Load() != uint32(want) {
		t.Errorf("dialled port %d, told %+v, wanted %d", r.dialer.port.Load(), ends, want)
	}
	shut, done := context.WithTimeout(context.Background(), 10*time.Second)
	defer done()
	if err := r.proxy.Shutdown(shut); err != nil {
		t.Error(err)
	}
}

package network_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// A shim that is gone leaves nobody to answer: peers wait, and are not reset.
func TestParkedWithoutInnerIsSilent(t *testing.T) {
	t.Parallel()
	w, l, _ := awake(t)
	old, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer old.Close()
	must(t, say(old, "before", answerTime))
	must(t, l.Disconnect(t.Context()))
	must(t, l.SetGate(t.Context(), network.Gate{Position: network.GateHeld, Ports: []uint16{echoPort}, Datagrams: []uint16{}}))
	must(t, l.Close())
	o := network.Options{Pod: w.pod, Attachment: w.att}
	must(t, network.Park(t.Context(), o))
	h := handle(t, w.inner)
	must(t, h.LinkDel(get(t, h, "eth0")))

	for range 2 { // Park may be called again, when I is gone and hib0 with it
		if err := say(old, "into the void", 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("established: %v", err)
		}
		if c, err := w.dial(echoPort, 300*time.Millisecond); err == nil || refused(err) {
			t.Fatalf("new: %v %v", c, err)
		}
		must(t, network.Park(t.Context(), o))
	}
	again := w.open(t)
	g, err := again.Gate(t.Context())
	must(t, err)
	if g.Position != network.GateParked || len(g.Ports) != 1 || g.Datagrams == nil { // what it knew of ports it keeps
		t.Fatalf("the gate is %#v", g)
	}
}

func TestParkLeavesAnOpenGateAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := network.Options{Pod: w.pod, Attachment: &network.Attachment{Interface: "eth0", MTU: 1500, Addresses: prefixes("10.99.0.2/24")}}
	empty := dump(t, w.pod)
	must(t, network.Park(t.Context(), o))
	same(t, empty, dump(t, w.pod))
	l := w.open(t)
	open := dump(t, w.pod)
	must(t, network.Park(t.Context(), o))
	same(t, open, dump(t, w.pod))
	must(t, l.Remove(t.Context()))
}

package network

import (
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// Whoever hears no more must not have probes taken from then on: nobody would answer them.
func TestDeafKeeperLearnsNothing(t *testing.T) {
	log, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = log.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{log: log}
	if err := k.run(); err == nil {
		t.Fatal("it hears a log that is closed")
	}
	if err := k.decide(&keepalive.Table{}); !errors.Is(err, ErrUnseen) {
		t.Errorf("it decides: %v", err)
	}
}

package network

import (
	"errors"
	"testing"
	"time"

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

// Another descriptor of a socket that is closed, as a child has until its exec, holds the place for a moment, and an openLog waits for that.
func TestPlaceInTheLogComesFree(t *testing.T) {
	l := bareLink(t)
	open := func() (log *netlink.Conn, err error) {
		err = enter(l.pod.ns, func() (err error) { log, err = openLog(earlyGroup, wholePackets); return err })
		return log, err
	}
	first, err := open()
	must(t, err)
	raw, err := first.SyscallConn()
	must(t, err)
	var other int
	must(t, control(raw, func(fd int) (err error) { other, err = unix.Dup(fd); return err }))
	must(t, first.Close())
	if _, err := open(); !errors.Is(err, unix.EPERM) {
		t.Fatalf("the place is taken: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { unix.Close(other) })
	second, err := open()
	must(t, err)
	must(t, second.Close())
}

package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Miss is a packet that found no sandbox: the kernel keeps it.
type Miss struct {
	Address netip.Addr // of the pod
	Time    time.Time
}

// Misses calls fn for each miss until ctx is done, and then returns nil. It
// subscribes first and then looks at what is waiting already, so none is missed;
// one that nobody answers is told again each second. fn is called from one
// goroutine and should not block for long.
func (l *Link) Misses(ctx context.Context, fn func(Miss)) error {
	outer, err := l.outer()
	if err != nil {
		return fmt.Errorf("watch misses: %w", err)
	}
	index := outer.Attrs().Index
	socket, err := l.pod.subscribe(unix.NETLINK_ROUTE, 1<<(unix.RTNLGRP_NEIGH-1))
	if err != nil {
		return fmt.Errorf("watch misses: %w", err)
	}
	defer socket.Close()
	stop := context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	report := func(n *netlink.Neigh) {
		if a := toAddr(n.IP); n.LinkIndex == index && l.attachment.has(a) {
			fn(Miss{Address: a, Time: time.Now()})
		}
	}
	if err := l.waiting(index, report); err != nil {
		return fmt.Errorf("watch misses: %w", err)
	}
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // notifications were lost: look
			err = l.waiting(index, report)
		case err == nil:
			err = eachMiss(buf[:n], report)
		}
		if err != nil {
			return fmt.Errorf("watch misses: %w", err)
		}
	}
	return nil
}

const unanswered = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED

func (l *Link) waiting(index int, report func(*netlink.Neigh)) error {
	list, err := l.pod.route.NeighList(index, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for i := range list {
		if list[i].State&unanswered != 0 {
			report(&list[i])
		}
	}
	return nil
}

// eachMiss reads notifications: RTM_GETNEIGH asks for an answer, and so says that
// a packet waits. RTM_NEWNEIGH says as much of an incomplete entry; of a failed one
// it says nothing, since that is also how the kernel tells that Disconnect removed
// the entry.
func eachMiss(b []byte, report func(*netlink.Neigh)) error {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return fmt.Errorf("parse notification: %w", err)
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_GETNEIGH && m.Header.Type != unix.RTM_NEWNEIGH {
			continue
		}
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			return fmt.Errorf("parse neighbour: %w", err)
		}
		if m.Header.Type == unix.RTM_GETNEIGH || n.State&netlink.NUD_INCOMPLETE != 0 {
			report(n)
		}
	}
	return nil
}

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Changes calls fn when something in P was changed that the link rests on: its
// end there, the pod's interface, routes, routing rules, the sandbox's neighbour, forwarding, nft rules. It
// does so for changes of this Link's own, too, where the kernel doesn't tell
// them apart, and may do so for nothing; [Link.Mend] looks. fn is called from
// two goroutines and must not block. Changes returns when ctx is done, then with nil.
func (l *Link) Changes(ctx context.Context, fn func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of what watches already, when the rest can't
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range []struct {
		protocol int
		groups   uint32
		concerns func(syscall.NetlinkMessage) bool
	}{
		{unix.NETLINK_ROUTE, routeGroups, l.concerns},
		{unix.NETLINK_NETFILTER, 1 << (unix.NFNLGRP_NFTABLES - 1), l.pod.foreignRules},
	} {
		socket, err := l.pod.subscribe(s.protocol, s.groups)
		if err != nil {
			return fmt.Errorf("watch changes: %w", err)
		}
		g.Go(func() error {
			defer socket.Close()
			return hear(ctx, socket, s.concerns, fn)
		})
	}
	return g.Wait()
}

const routeGroups uint32 = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_NEIGH-1) |
	1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV4_RULE-1) | 1<<(unix.RTNLGRP_IPV4_NETCONF-1) |
	1<<(unix.RTNLGRP_IPV6_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_RULE-1) | 1<<(unix.RTNLGRP_IPV6_NETCONF-1)

// concerns says whether a change of P's routing may be one of the link's.
func (l *Link) concerns(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		link, err := netlink.LinkDeserialize(nil, m.Data)
		return err != nil || link.Attrs().Name == outerName || link.Attrs().Name == l.attachment.Interface
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, err := netlink.NeighDeserialize(m.Data)
		return err != nil || l.attachment.has(toAddr(n.IP)) && !l.expects(n)
	case unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNETCONF:
		return true
	}
	return false
}

// expects says whether a neighbour is as Connect makes it, or waits for the sandbox.
func (l *Link) expects(n *netlink.Neigh) bool {
	return n.State&netlink.NUD_INCOMPLETE != 0 ||
		n.State&netlink.NUD_PERMANENT != 0 && n.HardwareAddr.String() == l.attachment.MAC
}

// foreignRules says whether a change of nft rules is not this side's.
func (s *side) foreignRules(m syscall.NetlinkMessage) bool {
	return m.Header.Pid != s.port.Load()
}

// subscribe hears of what is multicast in the side's namespace.
func (s *side) subscribe(protocol int, groups uint32) (f *os.File, err error) {
	err = enter(s.ns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return fmt.Errorf("netlink socket: %w", err)
		}
		f = os.NewFile(uintptr(fd), "changes")
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			f.Close()
			return fmt.Errorf("subscribe: %w", err)
		}
		return nil
	})
	return f, err
}

// hear reads notifications until ctx is done.
func hear(ctx context.Context, socket *os.File, concerns func(syscall.NetlinkMessage) bool, fn func()) error {
	stop := context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 1<<15)
	for {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some were lost: it may be one of ours
			fn()
			continue
		case err != nil:
			return fmt.Errorf("watch changes: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("watch changes: %w", err)
		}
		for _, m := range messages {
			if concerns(m) {
				fn()
				break
			}
		}
	}
}

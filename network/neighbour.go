package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrOutside says that a sandbox has all that it begins with, but that not all of
// what lies between it and its peers is in place.
var ErrOutside = errors.New("the sandbox can begin, but is not reached as it should be")

// PrepareInner mends the link, and puts the addresses, the default route and P's neighbour back into
// I, where runsc takes them from. To be called before each create: runsc takes
// the addresses away when it starts or restores. After ErrOutside all is in
// place in I: something of P's could not be mended, as routes without the pod's
// interface.
func (l *Link) PrepareInner(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var outside error
	for i, s := range l.stages(ctx) { // somebody may have taken the link away meanwhile
		if s.check() == nil {
			continue
		}
		err := s.repair()
		switch {
		case err != nil && i < stagesOfLink:
			return fmt.Errorf("prepare I: %s: %w", s.name, err)
		case err != nil:
			outside = errors.Join(outside, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	if err := l.fillInner(); err != nil {
		return err
	}
	if outside != nil {
		return fmt.Errorf("%w: %w", ErrOutside, outside)
	}
	return nil
}

func (l *Link) fillInner() error {
	if err := l.fit(); err != nil {
		return fmt.Errorf("prepare I: %w", err)
	}
	inner, err := l.inner.link(innerName)
	if err != nil {
		return fmt.Errorf("prepare I: %w", err)
	}
	for _, a := range l.attachment.carried() {
		if err := l.inner.route.AddrReplace(inner, linkAddress(l.attachment.inside(a))); err != nil {
			return fmt.Errorf("prepare I: address %s: %w", a, err)
		}
	}
	index := inner.Attrs().Index
	l.mu.Lock()
	l.device = index
	l.mu.Unlock()
	outer, err := l.outer()
	if err != nil {
		return fmt.Errorf("prepare I: %w", err)
	}
	for _, f := range l.attachment.families() {
		route := &netlink.Route{LinkIndex: index, Dst: toIPNet(f.all), Gw: f.gateway.AsSlice(), Flags: unix.RTNH_F_ONLINK}
		if err := l.inner.route.RouteReplace(route); err != nil {
			return fmt.Errorf("prepare I: default route of %s: %w", f.name, err)
		}
		if err := l.inner.route.NeighSet(permanent(index, f.gateway, outer.Attrs().HardwareAddr)); err != nil {
			return fmt.Errorf("prepare I: neighbour %s: %w", f.gateway, err)
		}
	}
	return nil
}

// linkAddress is an address of either end of the link. Nobody else can have it there, so nobody is asked.
func linkAddress(a netip.Addr) *netlink.Addr {
	out := &netlink.Addr{IPNet: host(a)}
	if a.Is6() {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// Lost says whether the sandbox's end of the link is gone. One that was made in its
// place is not the sandbox's: it gets that when it is restored after PrepareInner.
func (l *Link) Lost() (bool, error) {
	inner, err := l.inner.link(innerName)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.device != 0 && (inner == nil || inner.Attrs().Index != l.device), nil
}

func permanent(link int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
}

// Connect sets the sandbox as hib0's neighbour. The kernel delivers at once what
// it kept.
func (l *Link) Connect(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	outer, inner, err := l.ends()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if outer == nil || inner == nil {
		return fmt.Errorf("connect: the link is missing")
	}
	for _, a := range l.attachment.carried() {
		if err := l.pod.route.NeighSet(permanent(outer.Attrs().Index, a, inner.Attrs().HardwareAddr)); err != nil {
			return fmt.Errorf("connect: neighbour %s: %w", a, err)
		}
	}
	return l.fast.nowConnected()
}

// Disconnect takes the neighbour away: from now on the kernel keeps what goes to
// the sandbox, and reports it.
func (l *Link) Disconnect(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	if err := l.fast.disconnected(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	outer, err := l.outer()
	if err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	for _, a := range l.attachment.carried() {
		err := l.pod.route.NeighDel(&netlink.Neigh{LinkIndex: outer.Attrs().Index, IP: a.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("disconnect: neighbour %s: %w", a, err)
		}
	}
	return nil
}

func (l *Link) checkNeighbour() error {
	outer, inner, err := l.ends()
	if err != nil {
		return err
	}
	if outer == nil || inner == nil {
		return errors.New("the link is missing")
	}
	list, err := l.pod.route.NeighList(outer.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("neighbours of %s: %w", outerName, err)
	}
	for _, a := range l.attachment.carried() {
		i := slices.IndexFunc(list, func(n netlink.Neigh) bool { return toAddr(n.IP) == a })
		if i < 0 {
			return fmt.Errorf("no neighbour %s", a)
		}
		if list[i].State != netlink.NUD_PERMANENT {
			return fmt.Errorf("neighbour %s is not permanent", a)
		}
		if mac := inner.Attrs().HardwareAddr; !bytes.Equal(list[i].HardwareAddr, mac) {
			return fmt.Errorf("neighbour %s is %s, not %s", a, list[i].HardwareAddr, mac)
		}
	}
	return nil
}

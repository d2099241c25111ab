package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mtu is what the pod's interface takes at present, or its default route where that takes less. Of any other limit the
// sandbox hears as of one on the way, by ICMP.
func (l *Link) mtu() (int, error) {
	primary, err := l.pod.link(l.attachment.Interface)
	if err != nil {
		return 0, err
	}
	if primary == nil {
		return l.attachment.MTU, nil
	}
	mtu := primary.Attrs().MTU
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, LinkIndex: primary.Attrs().Index}
	list, err := l.pod.route.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
	if err != nil {
		return 0, fmt.Errorf("routes of P: %w", err)
	}
	for _, r := range list {
		if isDefault(r.Dst) && r.MTU > 0 {
			mtu = min(mtu, r.MTU)
		}
	}
	return mtu, nil
}

// checkMTU: a link that takes too much does no harm. What the sandbox's end takes, it may know, and then P's end has to take it.
func (l *Link) checkMTU(outer, inner netlink.Link) error {
	want, err := l.mtu()
	if err != nil {
		return err
	}
	want = max(want, inner.Attrs().MTU)
	for name, end := range map[string]netlink.Link{outerName: outer, innerName + " in I": inner} {
		if have := end.Attrs().MTU; have != want {
			return fmt.Errorf("%s has MTU %d, not %d", name, have, want)
		}
	}
	return nil
}

// widen is for the time in which a sandbox may be there. Its end doesn't shrink: it goes by the MTU that it found when it
// began, and its long packets have to come as far as P, which tells it of them.
func (l *Link) widen() error {
	inner, err := l.inner.link(innerName)
	if err != nil || inner == nil {
		return err
	}
	return l.resize(inner.Attrs().MTU)
}

// fit is for the time before a sandbox begins.
func (l *Link) fit() error { return l.resize(0) }

// resize gives both ends the MTU that they should have, and no less than least.
func (l *Link) resize(least int) error {
	want, err := l.mtu()
	if err != nil {
		return err
	}
	want = max(want, least)
	for s, name := range map[*side]string{l.pod: outerName, l.inner: innerName} {
		end, err := s.link(name)
		if err != nil {
			return err
		}
		if end == nil || end.Attrs().MTU == want {
			continue
		}
		if err := s.route.LinkSetMTU(end, want); err != nil {
			return fmt.Errorf("MTU of %s: %w", name, err)
		}
	}
	return nil
}

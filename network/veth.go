package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ends finds both ends of the link; each nil when it is not there.
func (l *Link) ends() (outer, inner netlink.Link, err error) {
	if outer, err = l.pod.link(outerName); err != nil {
		return nil, nil, err
	}
	inner, err = l.inner.link(innerName)
	return outer, inner, err
}

// paired tells whether two interfaces, in two namespaces, are one veth pair.
func paired(outer, inner netlink.Link) bool {
	peer := func(of *netlink.LinkAttrs) int {
		if of.ParentIndex == 0 { // some kernels leave it out when it equals the index
			return of.Index
		}
		return of.ParentIndex
	}
	o, i := outer.Attrs(), inner.Attrs()
	return peer(o) == i.Index && peer(i) == o.Index
}

func (l *Link) checkLink() error {
	outer, inner, err := l.ends()
	if err != nil {
		return err
	}
	if outer == nil {
		return fmt.Errorf("%s is missing", outerName)
	}
	if inner == nil || !paired(outer, inner) {
		return fmt.Errorf("%s: %w", outerName, ErrShared)
	}
	at := outer.Attrs()
	if at.Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s is down", outerName)
	}
	if err := l.checkMTU(outer, inner); err != nil {
		return err
	}
	return l.checkGateway(outer)
}

func (l *Link) checkGateway(outer netlink.Link) error {
	list, err := l.pod.route.AddrList(outer, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", outerName, err)
	}
	for _, f := range l.attachment.families() {
		if !slices.ContainsFunc(list, func(a netlink.Addr) bool { return toAddr(a.IP) == f.gateway }) {
			return fmt.Errorf("%s has no address %s", outerName, f.gateway)
		}
	}
	return nil
}

// repairLink makes the pair when it is missing and sets its end in P up.
func (l *Link) repairLink() error {
	outer, inner, err := l.ends()
	if err != nil {
		return err
	}
	if outer == nil {
		if outer, err = l.makePair(); err != nil {
			return err
		}
	} else if inner == nil || !paired(outer, inner) {
		return fmt.Errorf("%s: %w", outerName, ErrShared)
	}
	if err := l.adoptRecord(outer); err != nil {
		return err
	}
	if err := l.applyOuterSettings(); err != nil {
		return err
	}
	if err := l.widen(); err != nil {
		return err
	}
	for _, f := range l.attachment.families() {
		gw := linkAddress(f.gateway)
		gw.Scope = unix.RT_SCOPE_LINK
		if err := l.pod.route.AddrReplace(outer, gw); err != nil {
			return fmt.Errorf("address of %s: %w", outerName, err)
		}
	}
	if err := l.pod.route.LinkSetUp(outer); err != nil {
		return fmt.Errorf("set %s up: %w", outerName, err)
	}
	return nil
}

func (l *Link) makePair() (netlink.Link, error) {
	mtu, err := l.mtu()
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = outerName, mtu, outerMAC
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: innerName, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(l.inner.ns.Fd()))}
	if l.attachment.MAC != "" {
		mac, err := net.ParseMAC(l.attachment.MAC)
		if err != nil {
			return nil, fmt.Errorf("the attachment's MAC: %w", err)
		}
		pair.PeerHardwareAddr = mac
	}
	if err := l.pod.route.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("make %s: %w", outerName, err)
	}
	outer, err := l.pod.link(outerName)
	if err == nil && outer == nil {
		err = fmt.Errorf("%s went away", outerName)
	}
	return outer, err
}

// adoptRecord reads what P's sysctls were from hib0's alias, or notes them there
// before the first is changed.
func (l *Link) adoptRecord(outer netlink.Link) error {
	alias := outer.Attrs().Alias
	if alias != "" && l.found != nil {
		return nil
	}
	if alias != "" {
		var err error
		if l.found, err = parseRecord(alias); err != nil || !l.attachment.carries(ip6) || l.found.has(forwarding6) {
			return err
		}
		return l.noteIPv6(outer)
	}
	if l.found == nil {
		if err := l.readFound(); err != nil {
			return err
		}
	}
	if err := l.pod.route.LinkSetAlias(outer, l.found.String()); err != nil {
		return fmt.Errorf("note sysctls in the alias of %s: %w", outerName, err)
	}
	return nil
}

// noteIPv6 is for a link that was made before it carried IPv6.
func (l *Link) noteIPv6(outer netlink.Link) error {
	err := enter(l.pod.ns, func() error {
		value, err := readSysctl(forwarding6)
		l.found = append(l.found, setting{name: forwarding6, value: value})
		return err
	})
	if err != nil {
		return err
	}
	if err := l.pod.route.LinkSetAlias(outer, l.found.String()); err != nil {
		return fmt.Errorf("note sysctls in the alias of %s: %w", outerName, err)
	}
	return nil
}

func (l *Link) readFound() error {
	leftover, err := l.pod.ours()
	if err != nil {
		return err
	}
	read := readRecord
	if leftover {
		read = defaultRecord
	}
	return enter(l.pod.ns, func() error {
		l.found, err = read(l.attachment.Interface, l.attachment.carries(ip6))
		return err
	})
}

// checkInner looks at I: what answers for the sandbox must be silent.
func (l *Link) checkInner(ctx context.Context) error {
	inner, err := l.inner.link(innerName)
	if err != nil {
		return err
	}
	if inner == nil {
		return fmt.Errorf("%s is missing in I", innerName)
	}
	if inner.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s is down in I", innerName)
	}
	if err := enter(l.inner.ns, func() error { return checkSettings(l.innerSettings()) }); err != nil {
		return fmt.Errorf("in I: %w", err)
	}
	return l.checkMute(ctx)
}

func (l *Link) repairInner(ctx context.Context) error {
	inner, err := l.inner.link(innerName)
	if err != nil {
		return err
	}
	if inner == nil {
		return fmt.Errorf("%s is missing in I", innerName)
	}
	err = enter(l.inner.ns, func() error { return applySettings(l.innerSettings()) })
	if err := errors.Join(err, l.mute(ctx)); err != nil {
		return fmt.Errorf("in I: %w", err)
	}
	lo, err := l.inner.link("lo")
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{lo, inner} {
		if link == nil {
			continue
		}
		if err := l.inner.route.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up in I: %w", link.Attrs().Name, err)
		}
	}
	return nil
}

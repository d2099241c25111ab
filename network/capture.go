package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CaptureOption changes where Capture looks.
type CaptureOption func(*captureOptions)

type captureOptions struct {
	cache  string
	noIPv6 bool
}

// WithoutIPv6 leaves the pod's addresses and routes of IPv6 to P, where a workload is not to have them.
func WithoutIPv6() CaptureOption {
	return func(o *captureOptions) { o.noIPv6 = true }
}

// WithCNICache names the directory above libcni's "results"; /var/lib/cni is
// the default.
func WithCNICache(dir string) CaptureOption {
	return func(o *captureOptions) { o.cache = dir }
}

// Capture reads what CNI set up in the namespace at podNS. It may be called
// before Open, and after. The interface is that of the default route, else the
// first that is not loopback and has an address. Port mappings come from CNI's
// cached results and are left out when there are none to read.
//
// Errors: ErrNoNetwork, ErrHostNetwork, *ErrMesh (the attachment is returned
// with it).
func Capture(ctx context.Context, podNS string, options ...CaptureOption) (*Attachment, error) {
	o := captureOptions{cache: "/var/lib/cni"}
	for _, f := range options {
		f(&o)
	}
	pod, err := openSide(podNS)
	if err != nil {
		return nil, err
	}
	defer pod.close()
	if own, err := isOwn(pod.ns); err != nil {
		return nil, err
	} else if own {
		return nil, ErrHostNetwork
	}
	a, err := readAttachment(pod)
	if err != nil {
		return nil, fmt.Errorf("capture network of %s: %w", podNS, err)
	}
	if o.noIPv6 {
		a.leaveIPv6()
	}
	if len(a.Addresses) == 0 {
		return nil, ErrNoNetwork
	}
	a.PortMappings, a.published = cachedPortMappings(o.cache, podNS, a)
	found, err := foreignRules(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("look for foreign rules in %s: %w", podNS, err)
	}
	if len(found) > 0 {
		return a, &ErrMesh{Found: found}
	}
	return a, nil
}

func (a *Attachment) leaveIPv6() {
	a.Addresses = slices.DeleteFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
	a.Routes = slices.DeleteFunc(a.Routes, func(r Route) bool { return r.Destination.Addr().Is6() })
}

func readAttachment(pod *side) (*Attachment, error) {
	link, err := primary(pod)
	if err != nil {
		return nil, err
	}
	at := link.Attrs()
	a := &Attachment{Interface: at.Name, MAC: at.HardwareAddr.String(), MTU: at.MTU}
	if a.Addresses, err = addresses(pod, link); err != nil {
		return nil, err
	}
	if a.Others, err = otherInterfaces(pod, at.Index); err != nil {
		return nil, err
	}
	a.Routes, err = routes(pod, link)
	return a, err
}

// otherInterfaces are those with addresses besides the primary one.
func otherInterfaces(pod *side, primary int) (names []string, err error) {
	links, err := pod.route.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		at := l.Attrs()
		if at.Index == primary || at.Flags&net.FlagLoopback != 0 || at.Name == outerName {
			continue
		}
		list, err := addresses(pod, l)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			names = append(names, at.Name)
		}
	}
	return names, nil
}

// primary is the interface of the default route with the lowest metric, else
// the first one with an address.
func primary(pod *side) (netlink.Link, error) {
	links, err := pod.route.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	index, err := defaultRouteLink(pod)
	if err != nil {
		return nil, err
	}
	var first netlink.Link
	for _, l := range links {
		at := l.Attrs()
		if at.Flags&net.FlagLoopback != 0 || at.Name == outerName {
			continue
		}
		list, err := addresses(pod, l)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		if at.Index == index {
			return l, nil
		}
		if first == nil {
			first = l
		}
	}
	if first == nil {
		return nil, ErrNoNetwork
	}
	return first, nil
}

// defaultRouteLink prefers IPv4's default route; 0 when there is none at all.
func defaultRouteLink(pod *side) (int, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := pod.route.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return 0, fmt.Errorf("list routes: %w", err)
		}
		index, metric := 0, 0
		for _, r := range list {
			if isDefault(r.Dst) && r.LinkIndex != 0 && (index == 0 || r.Priority < metric) {
				index, metric = r.LinkIndex, r.Priority
			}
		}
		if index != 0 {
			return index, nil
		}
	}
	return 0, nil
}

func isDefault(n *net.IPNet) bool {
	if n == nil {
		return true
	}
	ones, _ := n.Mask.Size()
	return ones == 0
}

func addresses(pod *side, link netlink.Link) ([]netip.Prefix, error) {
	list, err := pod.route.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", link.Attrs().Name, err)
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, ok := toPrefix(a.IPNet); ok && usable(a) {
			out = append(out, p)
		}
	}
	return out, nil
}

// usable says whether an address is known beyond its link, and nobody else's there.
func usable(a netlink.Addr) bool {
	return a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_DADFAILED == 0
}

func routes(pod *side, link netlink.Link) ([]Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, LinkIndex: link.Attrs().Index}
	list, err := pod.route.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", link.Attrs().Name, err)
	}
	var out []Route
	for _, r := range list {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		dst, ok := toPrefix(r.Dst)
		if !ok {
			dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if r.Family == netlink.FAMILY_V6 {
				dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
		}
		if dst.Addr().IsLinkLocalUnicast() && dst.Addr().Is6() {
			continue
		}
		out = append(out, Route{Destination: dst, Gateway: toAddr(r.Gw), Source: toAddr(r.Src), Metric: r.Priority, MTU: r.MTU, OnLink: r.Flags&unix.RTNH_F_ONLINK != 0, Advertised: r.Protocol == unix.RTPROT_RA})
	}
	return out, nil
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil || len(n.IP) == 0 {
		return netip.Prefix{}, false
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(toAddr(n.IP), ones), true
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func host(a netip.Addr) *net.IPNet { return toIPNet(netip.PrefixFrom(a, a.BitLen())) }

package network

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// family is what the two versions of IP differ in, for rules and for sockets.
type family struct {
	name    string
	suffix  string // of the names of its sets and chains
	netlink int
	sockets int
	nf      byte
	ether   uint16

	gateway netip.Addr // the link's own address, on hib0
	all     netip.Prefix
	nowhere []netip.Prefix // addresses to which nothing is forwarded, whatever routes say: of nobody, of oneself, of a link, of groups

	// In the packet's header.
	source, destination, address uint32 // offsets, and the length of both
	header, protocol             uint32 // its length without options, and the offset of what follows it
	length                       uint32 // offset of a length,
	counted                      uint16 // which counts so many bytes of the header, too

	icmp                         byte // the protocol, and its types
	echoRequest, echoReply       byte
	unreachable, portUnreachable byte // the latter a code of the former
	errors                       []byte
	sourceChecksum               uint32 // offset of a checksum that covers the source: of the header, or of an error's message
}

var (
	ip4 = &family{
		name: "IPv4", netlink: netlink.FAMILY_V4, sockets: unix.AF_INET, nf: unix.NFPROTO_IPV4, ether: unix.ETH_P_IP,
		gateway: netip.MustParseAddr("169.254.42.1"), all: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		nowhere: prefixesOf("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3"), header: ipv4Header, protocol: 9,
		source: sourceOffset, destination: destinationOffset, address: 4, length: 2, counted: ipv4Header,
		icmp: unix.IPPROTO_ICMP, echoRequest: icmpEchoRequest, echoReply: icmpEchoReply, unreachable: icmpUnreachable, portUnreachable: 3,
		errors: []byte{icmpUnreachable, icmpExceeded, icmpParameter}, sourceChecksum: 10,
	}
	// An address of the link alone, as every router has one: the pod's own are untouched.
	ip6 = &family{
		name: "IPv6", suffix: "6", netlink: netlink.FAMILY_V6, sockets: unix.AF_INET6, nf: unix.NFPROTO_IPV6, ether: unix.ETH_P_IPV6,
		gateway: netip.MustParseAddr("fe80::42:1"), all: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		nowhere: prefixesOf("::/32", "fe80::/10", "ff00::/8"), header: ipv6Header, protocol: 6,
		source: 8, destination: 24, address: 16, length: 4,
		icmp: unix.IPPROTO_ICMPV6, echoRequest: 128, echoReply: 129, unreachable: 1, portUnreachable: 4,
		errors: []byte{1, 2, 3, 4}, sourceChecksum: ipv6Header + 2,
	}
	families = []*family{ip4, ip6}
)

func prefixesOf(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// familyOf is an address's.
func familyOf(a netip.Addr) *family {
	if a.Is4() {
		return ip4
	}
	return ip6
}

// of gives the pod's addresses of one family.
func (a *Attachment) of(f *family) []netip.Addr {
	var list []netip.Addr
	for _, p := range a.Addresses {
		if familyOf(p.Addr()) == f {
			list = append(list, p.Addr())
		}
	}
	return list
}

// carried gives all addresses that the link carries, those of IPv4 first.
func (a *Attachment) carried() []netip.Addr { return append(a.of(ip4), a.of(ip6)...) }

// families are those of which the pod has addresses.
func (a *Attachment) families() (list []*family) {
	for _, f := range families {
		if len(a.of(f)) > 0 {
			list = append(list, f)
		}
	}
	return list
}

// carries says whether the pod has addresses of a family.
func (a *Attachment) carries(f *family) bool { return len(a.of(f)) > 0 }

package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Counters say that there was use, not whose. So about one packet in a second of those that are counted is shown, its headers only;
// one that takes the fast path is not, but asks for its way once a second, and is then.

// Use is a packet that was counted.
type Use struct {
	Protocol  string // tcp or udp
	Peer, Own netip.AddrPort
	Outward   bool // from the sandbox
}

// String is as people read it: who to whom.
func (u Use) String() string {
	from, to := u.Peer, u.Own
	if u.Outward {
		from, to = u.Own, u.Peer
	}
	return fmt.Sprintf("%s %s → %s", u.Protocol, from, to)
}

// useGroup is where they are shown; see logGroup.
const useGroup = logGroup + 1

// seen shows a packet now and then, and is the end of the chain that counts.
func seen() chain {
	return chain{name: chainSeen, rules: []rule{when("show one a second",
		[]expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: 1, Unit: expr.LimitTimeSecond, Burst: 1}}, show(useGroup))}}
}

const chainSeen = "seen"

// Uses tells of use, of about one packet in a second, until ctx ends. Then the error is nil.
func (l *Link) Uses(ctx context.Context, tell func(Use)) error {
	return l.watchLog(ctx, useGroup, logCopied, func(p []byte) {
		if u, ok := l.parseUse(p); ok {
			tell(u)
		}
	})
}

// watchLog has packets told that rules show to a group, until ctx ends. Then the error is nil.
func (l *Link) watchLog(ctx context.Context, group uint16, copied uint32, tell func(packet []byte)) error {
	var log *mdnetlink.Conn
	err := enter(l.pod.ns, func() (err error) {
		log, err = openLog(group, copied)
		return err
	})
	if err != nil {
		return err
	}
	defer log.Close()
	stop := context.AfterFunc(ctx, func() { log.Close() })
	defer stop()
	for {
		packets, err := receiveLog(log)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // nobody misses them
		case err != nil:
			return fmt.Errorf("watch over packets: %w", err)
		}
		for _, p := range packets {
			tell(p)
		}
	}
}

func (l *Link) parseUse(p []byte) (u Use, ok bool) {
	if len(p) < ipv4Header {
		return u, false
	}
	f, at, protocol := ip4, int(p[0]&15)*4, p[9]
	if p[0]>>4 == 6 {
		f, at, protocol = ip6, ipv6Header, p[6]
	}
	if len(p) < at+4 {
		return u, false
	}
	switch protocol {
	case unix.IPPROTO_TCP:
		u.Protocol = "tcp"
	case unix.IPPROTO_UDP:
		u.Protocol = "udp"
	default:
		return u, false
	}
	end := func(address uint32, port int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(p[address : address+f.address])
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(p[port:]))
	}
	u.Peer, u.Own = end(f.source, at), end(f.destination, at+2)
	if u.Outward = slices.Contains(l.attachment.carried(), u.Peer.Addr()); u.Outward {
		u.Peer, u.Own = u.Own, u.Peer
	}
	return u, true
}

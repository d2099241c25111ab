package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Announce tells the pod's neighbours at which hardware address its addresses are from now on: gratuitous ARP, as a request and
// as an answer (RFC 5227; some heed the one, some the other), and unsolicited neighbour advertisements (RFC 4861, 7.2.6). It is
// for a workload that goes on in another pod than the one it slept in: who knew that one would send to a card that is gone.
// Who doesn't hear it asks by itself, some half a minute later.
func (l *Link) Announce(ctx context.Context) error {
	if l.attachment.MAC == "" {
		return nil
	}
	mac, err := net.ParseMAC(l.attachment.MAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("announce the pod: its hardware address is %q: %w", l.attachment.MAC, err)
	}
	primary, err := l.pod.link(l.attachment.Interface)
	if err == nil && primary == nil {
		err = fmt.Errorf("interface %s of P is missing", l.attachment.Interface)
	}
	if err != nil {
		return fmt.Errorf("announce the pod: %w", err)
	}
	var wire *os.File
	if err := enter(l.pod.ns, func() (err error) { wire, err = announceSocket(primary.Attrs().Index); return err }); err != nil {
		return fmt.Errorf("announce the pod: %w", err)
	}
	defer l.keeperGone.Go(func() { wire.Close() }) // the kernel takes ten milliseconds for it
	for _, p := range l.attachment.Addresses {
		for _, frame := range announcements(p.Addr(), mac) {
			if err := errors.Join(ctx.Err(), write(wire, frame)); err != nil {
				return fmt.Errorf("announce %s: %w", p.Addr(), err)
			}
		}
	}
	return nil
}

// write sends a frame; a network that takes none for now is as one that loses it.
func write(wire *os.File, frame []byte) error {
	if err := wire.SetWriteDeadline(time.Now().Add(netlinkMax)); err != nil {
		return err
	}
	_, err := wire.Write(frame)
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	return err
}

// announceSocket hears nothing.
func announceSocket(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("packet socket", err)
	}
	f := os.NewFile(uintptr(fd), "announce")
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
		f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	return f, nil
}

func announcements(a netip.Addr, mac net.HardwareAddr) [][]byte {
	if a.Is4() {
		return [][]byte{gratuitousARP(a, mac, 1), gratuitousARP(a, mac, 2)}
	}
	return [][]byte{unsolicitedAdvertisement(a, mac)}
}

func ethernet(to, from net.HardwareAddr, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte(nil), to...), from...), kind)
}

// gratuitousARP is RFC 826's packet, with the address as both protocol addresses.
func gratuitousARP(a netip.Addr, mac net.HardwareAddr, operation uint16) []byte {
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	f := ethernet(everybody, mac, unix.ETH_P_ARP)
	f = append(f, 0, 1, 0x08, 0x00, 6, 4) // Ethernet, IPv4, and the lengths of their addresses
	f = binary.BigEndian.AppendUint16(f, operation)
	target := everybody
	if operation == 2 {
		target = mac
	}
	f = append(append(f, mac...), a.AsSlice()...)
	return append(append(f, target...), a.AsSlice()...)
}

// unsolicitedAdvertisement goes to all nodes of the link, and overrides what they know.
func unsolicitedAdvertisement(a netip.Addr, mac net.HardwareAddr) []byte {
	const nextHeader, hopLimit, advertisement, override = unix.IPPROTO_ICMPV6, 255, 136, 0x20
	allNodes := netip.MustParseAddr("ff02::1")
	body := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, a.AsSlice()...)
	body = append(append(body, 2, 1), mac...) // option: target's link-layer address, in units of eight bytes
	pseudo := append(a.AsSlice(), allNodes.AsSlice()...)
	pseudo = append(pseudo, 0, 0, 0, byte(len(body)), 0, 0, 0, nextHeader)
	binary.BigEndian.PutUint16(body[2:], checksum(pseudo, body))

	f := ethernet(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6)
	f = append(f, 6<<4, 0, 0, 0, 0, byte(len(body)), nextHeader, hopLimit)
	f = append(append(f, a.AsSlice()...), allNodes.AsSlice()...)
	return append(f, body...)
}

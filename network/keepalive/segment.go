package keepalive

import (
	"encoding/binary"
	"net/netip"
)

// Flags of a segment.
const (
	SYN uint16 = 1 << 1
	RST uint16 = 1 << 2
	ACK uint16 = 1 << 4
)

// Segment is a TCP segment with its addresses. What it carries is of no interest here but for its length; as one to be
// sent it carries zeros.
type Segment struct {
	From, To netip.AddrPort
	Seq, Ack uint32
	Flags    uint16 // twelve bits, the reserved ones included
	Window   uint16 // as on the wire, not scaled
	Stamped  bool   // has the timestamps option:
	Value    uint32 // its sender's clock
	Echo     uint32 // the other's, as last seen
	Others   bool   // has options besides
	Length   int    // of what it carries
}

const (
	header4, header6, headerTCP = 20, 40, 20

	protocolTCP  = 6
	offsetTCP    = 12 // of the header's length and the flags
	checksumTCP  = 16
	stampsPadded = 12 // two no-operations and the option
	hops         = 64
)

// Parse reads an IP packet that is a whole TCP segment with right checksums. TCP's may also be what a kernel leaves in a
// packet that never was on a wire: the sum over the addresses alone (Linux's CHECKSUM_PARTIAL). Not for fragments, nor for
// packets with IP options or extension headers. What comes after the packet's own length is ignored.
func Parse(packet []byte) (s Segment, ok bool) {
	from, to, tcp, ok := split(packet)
	if !ok || len(tcp) < headerTCP {
		return Segment{}, false
	}
	length := int(tcp[offsetTCP]>>4) * 4
	if length < headerTCP || length > len(tcp) || !intact(from, to, tcp) {
		return Segment{}, false
	}
	s = Segment{
		From:   netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)),
		To:     netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:])),
		Seq:    binary.BigEndian.Uint32(tcp[4:]),
		Ack:    binary.BigEndian.Uint32(tcp[8:]),
		Flags:  binary.BigEndian.Uint16(tcp[offsetTCP:]) & 0x0fff,
		Window: binary.BigEndian.Uint16(tcp[14:]),
		Length: len(tcp) - length,
	}
	return s, s.parseOptions(tcp[headerTCP:length])
}

// Destination is the address to which an IP packet goes.
func Destination(packet []byte) (to netip.Addr, ok bool) {
	switch {
	case len(packet) >= header4 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[16:20])), true
	case len(packet) >= header6 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[24:40])), true
	}
	return to, false
}

// split finds the addresses, and what the packet carries for TCP.
func split(packet []byte) (from, to netip.Addr, tcp []byte, ok bool) {
	if len(packet) < 1 {
		return from, to, nil, false
	}
	switch packet[0] >> 4 {
	case 4:
		return split4(packet)
	case 6:
		return split6(packet)
	}
	return from, to, nil, false
}

func split4(p []byte) (from, to netip.Addr, tcp []byte, ok bool) {
	if len(p) < header4 || p[0]&15 != header4/4 || p[9] != protocolTCP {
		return from, to, nil, false
	}
	total := int(binary.BigEndian.Uint16(p[2:]))
	fragment := binary.BigEndian.Uint16(p[6:]) & 0x3fff // more of them, or an offset
	if total < header4 || total > len(p) || fragment != 0 || finish(sum(0, p[:header4])) != 0 {
		return from, to, nil, false
	}
	return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), p[header4:total], true
}

func split6(p []byte) (from, to netip.Addr, tcp []byte, ok bool) {
	if len(p) < header6 || p[6] != protocolTCP {
		return from, to, nil, false
	}
	total := header6 + int(binary.BigEndian.Uint16(p[4:]))
	if total > len(p) {
		return from, to, nil, false
	}
	return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), p[header6:total], true
}

// parseOptions reports whether the options are well formed.
func (s *Segment) parseOptions(b []byte) bool {
	for len(b) > 0 {
		switch b[0] {
		case 0: // the end: the rest is padding
			return true
		case 1:
			b = b[1:]
			continue
		}
		if len(b) < 2 || int(b[1]) < 2 || int(b[1]) > len(b) {
			return false
		}
		if b[0] == 8 && b[1] == 10 && !s.Stamped {
			s.Stamped, s.Value, s.Echo = true, binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:])
		} else {
			s.Others = true
		}
		b = b[b[1]:]
	}
	return true
}

// Packet is the segment as an IP packet. Others is of no effect.
func (s Segment) Packet() []byte {
	from, to := s.From.Addr(), s.To.Addr()
	options := 0
	if s.Stamped {
		options = stampsPadded
	}
	ip := header6
	if from.Is4() {
		ip = header4
	}
	p := make([]byte, ip+headerTCP+options+s.Length)
	putHeader(p, from, to)
	tcp := p[ip:]
	binary.BigEndian.PutUint16(tcp, s.From.Port())
	binary.BigEndian.PutUint16(tcp[2:], s.To.Port())
	binary.BigEndian.PutUint32(tcp[4:], s.Seq)
	binary.BigEndian.PutUint32(tcp[8:], s.Ack)
	binary.BigEndian.PutUint16(tcp[offsetTCP:], uint16((headerTCP+options)/4)<<12|s.Flags)
	binary.BigEndian.PutUint16(tcp[14:], s.Window)
	if s.Stamped {
		copy(tcp[headerTCP:], []byte{1, 1, 8, 10})
		binary.BigEndian.PutUint32(tcp[headerTCP+4:], s.Value)
		binary.BigEndian.PutUint32(tcp[headerTCP+8:], s.Echo)
	}
	binary.BigEndian.PutUint16(tcp[checksumTCP:], finish(sum(pseudo(from, to, len(tcp)), tcp)))
	return p
}

func putHeader(p []byte, from, to netip.Addr) {
	if !from.Is4() {
		p[0], p[6], p[7] = 6<<4, protocolTCP, hops
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-header6))
		copy(p[8:], from.AsSlice())
		copy(p[24:], to.AsSlice())
		return
	}
	p[0], p[6], p[8], p[9] = 4<<4|header4/4, 0x40, hops, protocolTCP // not to be fragmented
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[10:], finish(sum(0, p[:header4])))
}

// Complete puts the right checksum into a packet that Parse has read, wherever its kernel has left that to others.
func Complete(packet []byte) {
	from, to, tcp, ok := split(packet)
	if !ok || len(tcp) < headerTCP {
		return
	}
	binary.BigEndian.PutUint16(tcp[checksumTCP:], 0)
	binary.BigEndian.PutUint16(tcp[checksumTCP:], finish(sum(pseudo(from, to, len(tcp)), tcp)))
}

func intact(from, to netip.Addr, tcp []byte) bool {
	addresses := pseudo(from, to, len(tcp))
	return finish(sum(addresses, tcp)) == 0 || binary.BigEndian.Uint16(tcp[checksumTCP:]) == ^finish(addresses)
}

// pseudo is the sum over what the checksum covers besides the segment.
func pseudo(from, to netip.Addr, length int) uint32 {
	return sum(sum(uint32(protocolTCP)+uint32(length), from.AsSlice()), to.AsSlice())
}

// sum goes on with the Internet's checksum, RFC 1071; of b all but the last part have an even length.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func finish(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

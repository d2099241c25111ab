package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// early keeps what a sandbox says from its restore on until the gate opens for it: a timer that was due in its sleep fires at once. The gate
// shows and drops it; once the gate is open it is said again at I's end of the link, where the sandbox says the rest. Left to the sandbox
// it could take long: acknowledgements that the kernel has kept through the sleep count as round trips, and so the timer by which TCP says
// something again may be set to several times the sleep's length.
type early struct {
	log  *mdnetlink.Conn
	wire *os.File // frames with an offload header, out of I
	link earlyLink
	done sync.WaitGroup // run

	mu    sync.Mutex // guards the below
	kept  [][]byte   // while the gate is closed
	bytes int
	lost  int  // packets that were more than may be kept
	open  bool // what comes is sent at once
}

// earlyLink is what a frame from I to P has.
type earlyLink struct {
	to, from net.HardwareAddr
	mtu      int
}

const (
	// earlyGroup of the packet log has what the gate drops that comes from the sandbox.
	earlyGroup = youngGroup + 1
	// The bounds of what is kept.
	earlyPackets, earlyBytes = 1024, 4 << 20
	// earlyTail is for packets that met the gate's rules in the moment when they changed.
	earlyTail = 50 * time.Millisecond

	wholePackets = 0xffff
)

// KeepEarly keeps what the sandbox says from now on while the gate is closed, up to 1,024 packets of together 4 MiB. When the gate opens
// it is delivered, before or among what the sandbox says then; a packet that meets the gate in that very moment may come twice. To be called after
// PrepareInner. What was kept before is forgotten.
func (l *Link) KeepEarly(ctx context.Context) error {
	l.ForgetEarly()
	l.earlyGone.Wait() // the place in the packet log is free only then
	e, err := l.openEarly()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if e != nil {
			e.close()
		}
		return fmt.Errorf("keep what the sandbox says before the gate opens: %w", err)
	}
	e.done.Go(e.run)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.early = e
	return nil
}

// ForgetEarly drops what was kept, as of a sandbox that is given up.
func (l *Link) ForgetEarly() {
	if e := l.takeEarly(); e != nil {
		l.earlyGone.Go(e.finish) // the kernel takes ten milliseconds for it
	}
}

// passEarly delivers what was kept, as the gate has opened.
func (l *Link) passEarly() {
	e := l.takeEarly()
	if e == nil {
		return
	}
	e.pass()
	l.earlyGone.Go(func() {
		time.Sleep(earlyTail)
		e.finish()
	})
}

func (l *Link) takeEarly() *early {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.early
	l.early = nil
	return e
}

func (l *Link) openEarly() (*early, error) {
	inner, err := l.inner.link(innerName)
	if err == nil && inner == nil {
		err = fmt.Errorf("%s of I is missing", innerName)
	}
	if err != nil {
		return nil, err
	}
	outer, err := l.outer()
	if err != nil {
		return nil, err
	}
	e := &early{link: earlyLink{outer.Attrs().HardwareAddr, inner.Attrs().HardwareAddr, inner.Attrs().MTU}}
	err = enter(l.inner.ns, func() (err error) { e.wire, err = offloadSocket(inner.Attrs().Index); return err })
	if err == nil {
		err = enter(l.pod.ns, func() (err error) { e.log, err = openLog(earlyGroup, wholePackets); return err })
	}
	return e, err
}

// offloadSocket hears nothing, and leaves checksums and segments to the interface.
func offloadSocket(index int) (*os.File, error) {
	f, err := announceSocket(index)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err == nil {
		err = control(raw, func(fd int) error {
			return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
		})
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (e *early) run() {
	for {
		packets, err := receiveLog(e.log)
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // finish, or there is no log any more
			return
		}
		for _, p := range packets {
			e.take(p)
		}
	}
}

func (e *early) take(packet []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.open:
		e.send(packet)
	case len(e.kept) == earlyPackets || e.bytes+len(packet) > earlyBytes:
		e.lost++
	default:
		e.kept, e.bytes = append(e.kept, packet), e.bytes+len(packet)
	}
}

func (e *early) pass() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = true
	for _, p := range e.kept {
		e.send(p)
	}
	e.kept = nil
}

// send is no use of the wire beyond what the sandbox makes of it: what it doesn't take is as lost on it. The caller holds mu.
func (e *early) send(packet []byte) {
	if frame := e.link.frame(packet); frame != nil {
		_ = write(e.wire, frame)
	}
}

// finish ends run and closes the sockets.
func (e *early) finish() {
	_ = e.log.SetReadDeadline(time.Unix(1, 0))
	e.done.Wait()
	e.close()
}

func (e *early) close() {
	if e.log != nil {
		_ = e.log.Close()
	}
	if e.wire != nil {
		_ = e.wire.Close()
	}
}

// Of linux/virtio_net.h.
const (
	offloadHeader     = 10
	offloadChecksum   = 1 // flag: the field has the pseudo header's sum, the rest is to be added
	offloadTCP4       = 1
	offloadTCP6       = 4
	checksumAtTCP     = 16 // in the header
	checksumAtUDP     = 6
	lengthOfTCPHeader = 12
)

// frame is a packet as the sandbox would put it on the wire, behind an offload header: nil when it is none. What the log has shown may lack its
// checksum, or be one of those long ones of which the interface makes segments.
func (l earlyLink) frame(packet []byte) []byte {
	p, ok := parseIP(packet)
	if !ok {
		return nil
	}
	h := make([]byte, offloadHeader, offloadHeader+ethernetHeader+len(packet))
	f := append(append(h, ethernet(l.to, l.from, p.kind)...), packet...)
	field := -1
	switch {
	case p.fragment:
	case p.protocol == unix.IPPROTO_TCP && len(packet) >= p.header+shortestTCP:
		field = checksumAtTCP
	case p.protocol == unix.IPPROTO_UDP && len(packet) >= p.header+8:
		field = checksumAtUDP
	}
	if field < 0 {
		return f
	}
	start := ethernetHeader + p.header
	segment := f[offloadHeader+start:]
	if field == checksumAtUDP && binary.BigEndian.Uint16(segment[field:]) == 0 { // it has none
		return f
	}
	f[0] = offloadChecksum
	binary.NativeEndian.PutUint16(f[6:], uint16(start))
	binary.NativeEndian.PutUint16(f[8:], uint16(field))
	binary.BigEndian.PutUint16(segment[field:], ^checksum(p.pseudo(len(segment)), nil))
	if p.protocol != unix.IPPROTO_TCP || len(packet) <= l.mtu {
		return f
	}
	header := p.header + int(segment[lengthOfTCPHeader]>>4)*4
	if header >= l.mtu || header > len(packet) {
		return nil
	}
	f[1] = p.segments
	binary.NativeEndian.PutUint16(f[2:], uint16(ethernetHeader+header))
	binary.NativeEndian.PutUint16(f[4:], uint16(l.mtu-header))
	return f
}

// ipPacket is what a frame needs of a packet.
type ipPacket struct {
	kind     uint16 // Ethernet's
	header   int    // bytes
	protocol byte
	fragment bool
	segments byte // how an offload header calls its segments
	from, to []byte
}

func parseIP(b []byte) (p ipPacket, ok bool) {
	switch {
	case len(b) >= ipv4Header && b[0]>>4 == 4:
		p = ipPacket{
			kind: unix.ETH_P_IP, header: int(b[0]&15) * 4, protocol: b[9], segments: offloadTCP4, from: b[12:16], to: b[16:20],
			fragment: binary.BigEndian.Uint16(b[6:])&0x3fff != 0,
		}
		return p, p.header >= ipv4Header && p.header <= len(b) && int(binary.BigEndian.Uint16(b[2:])) == len(b)
	case len(b) >= ipv6Header && b[0]>>4 == 6:
		p = ipPacket{kind: unix.ETH_P_IPV6, header: ipv6Header, protocol: b[6], segments: offloadTCP6, from: b[8:24], to: b[24:40]}
		return p, ipv6Header+int(binary.BigEndian.Uint16(b[4:])) == len(b)
	}
	return p, false
}

// pseudo is the pseudo header of a segment of so many bytes: RFC 9293, 3.1, and RFC 8200, 8.1, whose sums are the same.
func (p ipPacket) pseudo(length int) []byte {
	b := append(append([]byte(nil), p.from...), p.to...)
	return binary.BigEndian.AppendUint32(append(b, 0, 0, 0, p.protocol), uint32(length))
}

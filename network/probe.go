package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	probeWait  = time.Second            // for an answer
	probeAgain = 100 * time.Millisecond // a question that got none is asked again
)

// prober asks the sandbox from the link's own address. Questions take the road
// of the traffic (mark, route, neighbour); answers are heard on hib0 before the
// gate, so its position doesn't matter.
type prober struct {
	send int // raw IP socket
	hear *os.File
}

func (l *Link) openProber(proto int) (*prober, error) {
	outer, err := l.outer()
	if err != nil {
		return nil, err
	}
	p := &prober{send: -1}
	err = enter(l.pod.ns, func() (err error) {
		if p.hear, err = hearing(outer.Attrs().Index, proto); err != nil {
			return err
		}
		p.send, err = sending(proto)
		return err
	})
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *prober) close() {
	if p.hear != nil {
		p.hear.Close()
	}
	if p.send >= 0 {
		unix.Close(p.send)
	}
}

func sending(proto int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return -1, fmt.Errorf("raw socket: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(MarkSandbox))
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(gateway4, 0)))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("raw socket: %w", err)
	}
	return fd, nil
}

// hearing makes a packet socket that takes only what is for the link's own
// address and of one protocol.
func hearing(index, proto int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "probe")
	err = attachFilter(fd, proto)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_IP), Ifindex: index})
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return f, nil
}

func swap(v uint16) uint16 { return v<<8 | v>>8 }

func attachFilter(fd, proto int) error {
	gw := gateway4.As4()
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: destinationOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(gw[:]), SkipTrue: 3},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(proto), SkipTrue: 1},
		bpf.RetConstant{Val: 256},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// ask sends question until answered finds its answer in an IP payload.
func (p *prober) ask(ctx context.Context, to netip.Addr, question []byte, answered func(source netip.Addr, payload []byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	for ctx.Err() == nil {
		if err := unix.Sendto(p.send, question, 0, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		until := time.Now().Add(probeAgain)
		if d, _ := ctx.Deadline(); d.Before(until) {
			until = d
		}
		err := p.listen(until, answered)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return errors.New("no answer")
}

func (p *prober) listen(until time.Time, answered func(netip.Addr, []byte) bool) error {
	if err := p.hear.SetReadDeadline(until); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := p.hear.Read(buf)
		if err != nil {
			return err
		}
		header := int(buf[0]&15) * 4
		if n < ipv4Header || n < header {
			continue
		}
		source := netip.AddrFrom4([4]byte(buf[sourceOffset:destinationOffset]))
		if answered(source, buf[header:n]) {
			return nil
		}
	}
}

// checkNetstack sends an echo request to each of the pod's addresses.
func (l *Link) checkNetstack(ctx context.Context) error {
	p, err := l.openProber(unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer p.close()
	for _, a := range l.attachment.ipv4() {
		id := rand.Uint32()
		err := p.ask(ctx, a, echoRequest(id), func(source netip.Addr, b []byte) bool {
			return source == a && len(b) >= 8 && b[0] == 0 && binary.BigEndian.Uint32(b[4:]) == id
		})
		if err != nil {
			return fmt.Errorf("echo to %s: %w", a, err)
		}
	}
	return nil
}

func echoRequest(id uint32) []byte {
	b := make([]byte, 8)
	b[0] = unixEchoRequest
	binary.BigEndian.PutUint32(b[4:], id)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// checksum is the Internet's, RFC 1071.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts { // all but the last of even length
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

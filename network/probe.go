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

	"golang.org/x/sys/unix"
)

const (
	probeWait  = time.Second            // for an answer
	probeAgain = 100 * time.Millisecond // a question that got none is asked again
)

// prober asks the sandbox from the link's own address. Questions take the road
// of the traffic (mark, route, neighbour), and so do the answers; the gate lets
// them pass in every position. It is a raw IP socket, and not a packet socket,
// since closing one of those takes the kernel ten milliseconds.
type prober struct {
	family *family
	socket *os.File
}

func (l *Link) openProber(proto int, to netip.Addr) (*prober, error) {
	outer, err := l.outer()
	if err != nil {
		return nil, err
	}
	p := &prober{family: familyOf(to)}
	err = enter(l.pod.ns, func() error {
		fd, err := unix.Socket(p.family.sockets, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		p.socket = os.NewFile(uintptr(fd), "probe")
		if err := setOptions(fd, socketOption{"mark", unix.SOL_SOCKET, unix.SO_MARK, int(MarkSandbox)}); err != nil {
			return err
		}
		if err := unix.Bind(fd, onLink(p.family.gateway, outer.Attrs().Index)); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("connect", unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, 0))))
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("probe: %w", err)
	}
	return p, nil
}

// onLink is an address that is known on one interface only.
func onLink(a netip.Addr, index int) unix.Sockaddr {
	to := sockaddr(netip.AddrPortFrom(a, 0))
	if six, ok := to.(*unix.SockaddrInet6); ok {
		six.ZoneId = uint32(index)
	}
	return to
}

func (p *prober) close() {
	if p.socket != nil {
		p.socket.Close()
	}
}

// ask sends question until answered finds its answer in an IP payload.
func (p *prober) ask(ctx context.Context, question []byte, answered func(payload []byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := p.socket.Write(question); err != nil {
			return err
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

func (p *prober) listen(until time.Time, answered func([]byte) bool) error {
	if err := p.socket.SetReadDeadline(until); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := p.socket.Read(buf)
		if err != nil {
			return err
		}
		header := 0 // of IPv6's the kernel gives none
		if p.family == ip4 {
			header = int(buf[0]&15) * 4
		}
		if n >= header && answered(buf[header:n]) {
			return nil
		}
	}
}

// checkNetstack sends an echo request to each of the pod's addresses.
func (l *Link) checkNetstack(ctx context.Context) error {
	for _, a := range l.attachment.carried() {
		if err := l.echo(ctx, a); err != nil {
			return fmt.Errorf("echo to %s: %w", a, err)
		}
	}
	return nil
}

func (l *Link) echo(ctx context.Context, a netip.Addr) error {
	f := familyOf(a)
	p, err := l.openProber(int(f.icmp), a)
	if err != nil {
		return err
	}
	defer p.close()
	id := rand.Uint32()
	return p.ask(ctx, f.echo(id), func(b []byte) bool {
		return len(b) >= 8 && b[0] == f.echoReply && binary.BigEndian.Uint32(b[4:]) == id
	})
}

// echo is a request. Its checksum is right for IPv4; of IPv6 the kernel makes it.
func (f *family) echo(id uint32) []byte {
	b := make([]byte, 8)
	b[0] = f.echoRequest
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

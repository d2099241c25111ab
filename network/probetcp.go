package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// checkAccepts asks the ports one after another with a SYN; one that answers
// with SYN-ACK is enough. The connection is then reset, half open: the workload
// never sees it.
func (l *Link) checkAccepts(ctx context.Context, ports []uint16) error {
	if len(ports) == 0 {
		return nil
	}
	var errs []error
	for _, f := range l.attachment.families() {
		err := l.accepts(ctx, l.attachment.of(f)[0], ports)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l *Link) accepts(ctx context.Context, to netip.Addr, ports []uint16) error {
	p, err := l.openProber(unix.IPPROTO_TCP, to)
	if err != nil {
		return err
	}
	defer p.close()
	var errs []error
	for _, port := range ports {
		if err = p.knock(ctx, netip.AddrPortFrom(to, port)); err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("port %d: %w", port, err))
	}
	return errors.Join(errs...)
}

var errRefused = errors.New("refused")

func (p *prober) knock(ctx context.Context, to netip.AddrPort) error {
	s := segment{
		from: netip.AddrPortFrom(p.family.gateway, uint16(ProxyPortLow+rand.IntN(ProxyPortHigh-ProxyPortLow))),
		to:   to, seq: rand.Uint32(), flags: syn,
	}
	var refused bool
	err := p.ask(ctx, s.bytes(), func(b []byte) bool {
		refused = len(b) >= shortestTCP && b[13]&rst != 0
		return s.answeredBy(b)
	})
	if err != nil {
		return err
	}
	if refused {
		return errRefused
	}
	s.seq, s.flags = s.seq+1, rst
	if _, err := p.socket.Write(s.bytes()); err != nil {
		return fmt.Errorf("reset the probe: %w", err)
	}
	return nil
}

// segment is a TCP segment without options or data.
type segment struct {
	from, to netip.AddrPort
	seq      uint32
	flags    byte
}

func (s segment) bytes() []byte {
	b := make([]byte, shortestTCP)
	binary.BigEndian.PutUint16(b[0:], s.from.Port())
	binary.BigEndian.PutUint16(b[2:], s.to.Port())
	binary.BigEndian.PutUint32(b[4:], s.seq)
	b[12], b[13] = shortestTCP/4<<4, s.flags
	binary.BigEndian.PutUint16(b[14:], 1024) // window
	pseudo := append(s.from.Addr().AsSlice(), s.to.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, shortestTCP)
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo, b))
	return b
}

// answeredBy: SYN-ACK or RST, acknowledging just the SYN.
func (s segment) answeredBy(b []byte) bool {
	return len(b) >= shortestTCP &&
		binary.BigEndian.Uint16(b[0:]) == s.to.Port() &&
		binary.BigEndian.Uint16(b[2:]) == s.from.Port() &&
		binary.BigEndian.Uint32(b[8:]) == s.seq+1 &&
		(b[13]&(syn|ack) == syn|ack || b[13]&rst != 0)
}

package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

const (
	elicitAtOnce = 128                   // questions on their way
	elicitWait   = 50 * time.Millisecond // for an answer, and again
	elicitTries  = 3
	elicitBuffer = 4 << 20
)

// question makes the sandbox tell the state of a connection. Any end of an open connection answers a segment with SYN by
// an acknowledgement of what it has, whatever the segment's number, and does nothing else (RFC 5961, section 4). With ACK,
// too, it opens nothing where the connection is gone. With a byte, the answer is not held back for having given one of
// late.
func question(f Flow) keepalive.Segment {
	return keepalive.Segment{From: f.Peer, To: f.Own, Flags: keepalive.SYN | keepalive.ACK, Window: 1024, Length: 1}
}

// elicit asks the sandbox over the wire, since there is no neighbour any more, and hears what it says before the gate
// drops it. Connections that don't answer are not known, and no error.
func (l *Link) elicit(ctx context.Context, flows []Flow) (*keepalive.Table, error) {
	if len(flows) == 0 {
		return &keepalive.Table{}, nil
	}
	e, err := l.openElicitor()
	if err != nil {
		return nil, err
	}
	defer l.keeperGone.Go(e.close) // the kernel takes ten milliseconds for it
	byFamily := map[*family][]Flow{}
	for _, f := range flows {
		byFamily[familyOf(f.Own.Addr())] = append(byFamily[familyOf(f.Own.Addr())], f)
	}
	for f, flows := range byFamily {
		for some := range slices.Chunk(flows, elicitAtOnce) {
			if err := e.askAll(ctx, e.wires[f], some); err != nil {
				return nil, fmt.Errorf("ask the sandbox: %w", err)
			}
		}
	}
	return e.table, nil
}

func (l *Link) openElicitor() (*elicitor, error) {
	outer, inner, err := l.ends()
	if err != nil {
		return nil, err
	}
	if outer == nil || inner == nil {
		return nil, errors.New("the link is missing")
	}
	e := &elicitor{to: inner.Attrs().HardwareAddr, from: outer.Attrs().HardwareAddr, table: &keepalive.Table{}, wires: map[*family]*os.File{}}
	err = enter(l.pod.ns, func() (err error) {
		for _, f := range l.attachment.families() {
			wire, err := openWire(f, outer.Attrs().Index)
			if err != nil {
				return err
			}
			e.wires[f] = wire
		}
		return nil
	})
	if err != nil {
		e.close()
		return nil, fmt.Errorf("ask the sandbox: %w", err)
	}
	return e, nil
}

func (e *elicitor) close() {
	for _, wire := range e.wires {
		wire.Close()
	}
}

type elicitor struct {
	wires    map[*family]*os.File // of one protocol each: the kernel translates what they hear, and what they send
	to, from net.HardwareAddr
	table    *keepalive.Table
}

// askAll asks for some connections of a wire's family until all have answered, or have been asked often enough.
func (e *elicitor) askAll(ctx context.Context, wire *os.File, flows []Flow) error {
	open := map[Flow]bool{}
	for _, f := range flows {
		open[f] = true
	}
	for range elicitTries {
		for f := range open {
			if err := e.ask(f); err != nil {
				return err
			}
		}
		until := time.Now().Add(elicitWait)
		for len(open) > 0 {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := e.hear(wire, until, open); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *elicitor) ask(f Flow) error { return e.send(question(f)) }

func (e *elicitor) send(s keepalive.Segment) error {
	f := familyOf(s.To.Addr())
	frame := binary.BigEndian.AppendUint16(append(append([]byte(nil), e.to...), e.from...), f.ether)
	_, err := e.wires[f].Write(append(frame, s.Packet()...))
	return err
}

// hear reads one frame. One that answers closes its question: what a connection says that has just ended is no state.
func (e *elicitor) hear(wire *os.File, until time.Time, open map[Flow]bool) error {
	if err := wire.SetReadDeadline(until); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	n, err := wire.Read(buf)
	if err != nil || n < ethernetHeader {
		return err
	}
	s, ok := keepalive.Parse(buf[ethernetHeader:n])
	f := Flow{Own: s.From, Peer: s.To}
	if !ok || !open[f] {
		return nil
	}
	delete(open, f)
	if st, ok := keepalive.Learn(s); ok {
		e.table.Add(f, st)
	}
	return nil
}

// openWire runs inside P. It hears what comes from the sandbox by a family.
func openWire(f *family, index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("packet socket", err)
	}
	wire := os.NewFile(uintptr(fd), "wire")
	err = setOptions(fd,
		socketOption{"ignore what is sent", unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		socketOption{"buffer", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, elicitBuffer})
	if err == nil {
		protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, f.ether))
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index}))
	}
	if err != nil {
		wire.Close()
		return nil, err
	}
	return wire, nil
}

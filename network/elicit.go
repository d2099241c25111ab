package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
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
	defer l.keeperGone.Go(func() { e.wire.Close() }) // the kernel takes ten milliseconds for it
	for ; len(flows) > 0; flows = flows[min(len(flows), elicitAtOnce):] {
		if err := e.askAll(ctx, flows[:min(len(flows), elicitAtOnce)]); err != nil {
			return nil, fmt.Errorf("ask the sandbox: %w", err)
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
	e := &elicitor{to: inner.Attrs().HardwareAddr, from: outer.Attrs().HardwareAddr, table: &keepalive.Table{}}
	if err := enter(l.pod.ns, func() (err error) { e.wire, err = openWire(outer.Attrs().Index); return err }); err != nil {
		return nil, fmt.Errorf("ask the sandbox: %w", err)
	}
	return e, nil
}

type elicitor struct {
	wire     *os.File
	to, from net.HardwareAddr
	table    *keepalive.Table
}

// askAll asks for some connections until all have answered, or have been asked often enough.
func (e *elicitor) askAll(ctx context.Context, flows []Flow) error {
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
			if err := e.hear(until, open); errors.Is(err, os.ErrDeadlineExceeded) {
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
	frame := append(append(append([]byte(nil), e.to...), e.from...), 0x08, 0x00) // ETH_P_IP
	_, err := e.wire.Write(append(frame, s.Packet()...))
	return err
}

// hear reads one frame. One that answers closes its question: what a connection says that has just ended is no state.
func (e *elicitor) hear(until time.Time, open map[Flow]bool) error {
	if err := e.wire.SetReadDeadline(until); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	n, err := e.wire.Read(buf)
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

// openWire runs inside P. It hears what comes from the sandbox.
func openWire(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("packet socket", err)
	}
	f := os.NewFile(uintptr(fd), "wire")
	err = setOptions(fd,
		socketOption{"ignore what is sent", unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		socketOption{"buffer", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, elicitBuffer})
	if err == nil {
		protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index}))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A wire hears P's end of a sandbox's link, with the kernel's time of each packet.
type wire struct{ fd int }

// tap listens in a pod. The caller closes it.
func tap(world *harness.World, pod harness.Pod) (*wire, error) {
	t := &wire{fd: -1}
	in, err := newThread(func() error { return enterNetwork(world.Path(pod.Path)) })
	if err != nil {
		return nil, err
	}
	defer in.close()
	in.do(func() { err = t.open() })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen at the link of %s: %w", pod.Path, err), t.close())
	}
	return t, nil
}

func enterNetwork(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

func (t *wire) open() (err error) {
	every := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return err
	}
	link, err := net.InterfaceByName("hib0")
	if err != nil {
		return err
	}
	return unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: link.Index})
}

func (t *wire) close() error {
	if t.fd < 0 {
		return nil
	}
	return unix.Close(t.fd)
}

// thinking is how long the sandbox took, of all that was heard since the last call, to answer the first handshake and the
// first request: from each packet's way in to the answer's way out.
func (t *wire) thinking() (time.Duration, error) {
	var shook, answered exchange
	buf, oob := make([]byte, 256), make([]byte, 128)
	for {
		n, oobn, _, from, err := unix.Recvmsg(t.fd, buf, oob, 0)
		if errors.Is(err, unix.EAGAIN) {
			return shook.took() + answered.took(), nil
		}
		if err != nil {
			return 0, err
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		at, err := stamp(oob[:oobn])
		if err != nil {
			return 0, err
		}
		if syn, data := segment(buf[:n]); ok && (syn || data > 0) {
			e := &answered
			if syn {
				e = &shook
			}
			e.note(link.Pkttype == unix.PACKET_OUTGOING, at)
		}
	}
}

// An exchange is the first packet to the sandbox, and the first from it after that.
type exchange struct{ in, out time.Time }

func (e *exchange) note(in bool, at time.Time) {
	switch {
	case in && e.in.IsZero():
		e.in = at
	case !in && !e.in.IsZero() && e.out.IsZero():
		e.out = at
	}
}

func (e *exchange) took() time.Duration {
	if e.out.IsZero() {
		return 0
	}
	return e.out.Sub(e.in)
}

func stamp(oob []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))), nil
		}
	}
	return time.Time{}, errors.New("a packet without a time")
}

// segment says of an IPv4 packet whether it is TCP's with SYN, and how many bytes it carries; of others, nothing.
func segment(packet []byte) (syn bool, data int) {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_TCP {
		return false, 0
	}
	header := int(packet[0]&0xf) * 4
	if len(packet) < header+20 {
		return false, 0
	}
	tcp := packet[header:]
	return tcp[13]&2 != 0, int(binary.BigEndian.Uint16(packet[2:])) - header - int(tcp[12]>>4)*4
}

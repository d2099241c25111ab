package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// logGroup is where the rules show packets. Groups are a namespace's own; who logs in a pod takes small numbers.
const logGroup = 0x6869

// Of linux/netfilter/nfnetlink_log.h.
const (
	logPacket, logConfig           = 0, 1
	logCommand, logMode, logAtOnce = 1, 2, 5 // attributes of a configuration
	logBind, logCopyPacket         = 1, 2
	logPayload                     = 9                      // attribute of a packet
	logHeader                      = 4                      // before the attributes
	logBuffer                      = 8 << 20                // a message takes four KiB of it, whatever it holds
	logCopied                      = 256                    // more than the longest segment of a byte
	logFree                        = 500 * time.Millisecond // until the place of an earlier socket is free
)

// openLog runs inside P. An earlier socket's place is free once nobody has that any more: for a moment any child of this process does, from its
// fork to its exec.
func openLog(group uint16, copied uint32) (*mdnetlink.Conn, error) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := bindLog(group, copied)
		if !errors.Is(err, unix.EPERM) || time.Since(began) > logFree {
			return c, err
		}
	}
}

func bindLog(group uint16, copied uint32) (*mdnetlink.Conn, error) {
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("packet log: %w", err)
	}
	err = c.SetReadBuffer(logBuffer)
	for _, config := range [][]mdnetlink.Attribute{
		{{Type: logCommand, Data: []byte{logBind}}},
		{
			{Type: logMode, Data: append(binary.BigEndian.AppendUint32(nil, copied), logCopyPacket, 0)},
			{Type: logAtOnce, Data: binary.BigEndian.AppendUint32(nil, 1)},
		},
	} {
		if err == nil {
			err = configureLog(c, group, config)
		}
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("packet log: %w", err)
	}
	return c, nil
}

func configureLog(c *mdnetlink.Conn, group uint16, config []mdnetlink.Attribute) error {
	attributes, err := mdnetlink.MarshalAttributes(config)
	if err != nil {
		return err
	}
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)
	_, err = c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig, Flags: mdnetlink.Request | mdnetlink.Acknowledge},
		Data:   append(header, attributes...),
	})
	return err
}

// receiveLog waits for packets; they are the caller's.
func receiveLog(c *mdnetlink.Conn) (packets [][]byte, err error) {
	messages, err := c.Receive()
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(m.Data) < logHeader {
			continue
		}
		attributes, err := mdnetlink.UnmarshalAttributes(m.Data[logHeader:])
		if err != nil {
			continue // the kernel's own; there is nothing to be done for it
		}
		for _, a := range attributes {
			if a.Type == logPayload {
				packets = append(packets, a.Data)
			}
		}
	}
	return packets, nil
}

// rawSocket sends whole packets of a family out of P.
type rawSocket struct{ file *os.File }

// openRaw runs inside P.
func openRaw(f *family, mark uint32) (*rawSocket, error) {
	fd, err := unix.Socket(f.sockets, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("raw socket", err)
	}
	if err := setOptions(fd, socketOption{"mark", unix.SOL_SOCKET, unix.SO_MARK, int(mark)}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &rawSocket{os.NewFile(uintptr(fd), "raw")}, nil
}

func (s *rawSocket) close() error { return s.file.Close() }

func (s *rawSocket) send(packet []byte, to netip.Addr) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		return os.NewSyscallError("send", unix.Sendto(fd, packet, unix.MSG_DONTWAIT, sockaddr(netip.AddrPortFrom(to, 0))))
	})
}

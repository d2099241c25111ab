package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// side is one end of the link: an open namespace with netlink sockets inside.
type side struct {
	ns    *os.File
	route *netlink.Handle

	mu     sync.Mutex // guards the below, and that one request is under way
	nft    *nftables.Conn
	socket *mdnetlink.Conn

	port atomic.Uint32 // of the newest nft connection, by which the kernel names who changed rules
}

func openSide(path string) (*side, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, err
	}
	s := &side{ns: ns}
	err = enter(ns, func() error {
		s.route, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = s.route.SetSocketTimeout(netlinkMax)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("netlink in %s: %w", path, err)
	}
	return s, nil
}

func (s *side) close() error {
	if s.route != nil {
		s.route.Close()
	}
	s.mu.Lock()
	err := s.closeNFT()
	s.mu.Unlock()
	return errors.Join(err, s.ns.Close())
}

func (s *side) closeNFT() error {
	if s.nft == nil {
		return nil
	}
	err := s.nft.CloseLasting()
	s.nft, s.socket = nil, nil
	return err
}

// withNFT runs fn on the side's nft connection, if ctx is not done; a request
// takes the kernel no time, so it is not cut short. After an error the connection
// is given up, since answers to the failed request may still wait in it.
func (s *side) withNFT(ctx context.Context, fn func(*nftables.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nft == nil {
		if err := s.openNFT(); err != nil {
			return err
		}
	}
	err := s.socket.SetDeadline(time.Now().Add(netlinkMax))
	if err == nil {
		err = fn(s.nft)
	}
	if err != nil {
		s.closeNFT() // the error to report is fn's
	}
	return err
}

func (s *side) openNFT() error {
	keep := func(c *mdnetlink.Conn) error { s.socket = c; return nil }
	return enter(s.ns, func() error {
		conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(keep))
		if err != nil {
			return fmt.Errorf("nft in %s: %w", s.ns.Name(), err)
		}
		s.nft = conn
		return s.learnPort()
	})
}

func (s *side) learnPort() error {
	raw, err := s.socket.SyscallConn()
	if err != nil {
		return err
	}
	var name unix.Sockaddr
	if e := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); e != nil {
		return e
	}
	if n, ok := name.(*unix.SockaddrNetlink); ok {
		s.port.Store(n.Pid)
	}
	return err
}

// link finds an interface by name; nil when there is none.
func (s *side) link(name string) (netlink.Link, error) {
	l, err := s.route.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return l, nil
}

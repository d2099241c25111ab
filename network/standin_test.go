package network_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// standIn plays the sandbox: a namespace whose kernel has the pod's address and
// is fed, as runsc is, from a packet socket on I's eth0. While it is frozen
// nothing is taken from that socket, nor put there.
type standIn struct {
	ns     string
	frozen sync.RWMutex // held for writing while frozen
}

func newStandIn(t testing.TB, w *world) *standIn {
	t.Helper()
	s := &standIn{ns: filepath.Join(t.TempDir(), "sandbox")}
	must(t, network.NewNamespace(s.ns))
	t.Cleanup(func() { must(t, network.RemoveNamespace(s.ns)) })
	inner := handle(t, w.inner)
	mac := get(t, inner, "eth0").Attrs().HardwareAddr
	pair(t, w.inner, "feed", s.ns, "eth0", mac)
	h := handle(t, s.ns)
	index := get(t, h, "eth0").Attrs().Index
	hib0 := get(t, handle(t, w.pod), "hib0").Attrs().HardwareAddr
	for _, f := range w.families {
		addAddr(t, h, "eth0", f.pod, f.pod.BitLen())
		gw := f.gateway.AsSlice()
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: everywhere(f.pod), Gw: gw, Flags: unix.RTNH_F_ONLINK}))
		must(t, h.NeighSet(&netlink.Neigh{LinkIndex: index, IP: gw, HardwareAddr: hib0, State: netlink.NUD_PERMANENT}))
		eventually(t, "the sandbox's address is in use", func() bool { return inUse(t, h, f.pod) })
	}
	s.pump(t, w)
	for _, f := range w.families {
		s.serve(t, f)
	}
	return s
}

func (s *standIn) freeze() { s.frozen.Lock() }
func (s *standIn) thaw()   { s.frozen.Unlock() }

func (s *standIn) pump(t testing.TB, w *world) {
	wire := inside(t, w.inner, func() (*os.File, error) { return packetSocket("eth0") })
	feed := inside(t, w.inner, func() (*os.File, error) { return packetSocket("feed") })
	var running sync.WaitGroup
	running.Go(func() { s.copy(feed, wire) })
	running.Go(func() { s.copy(wire, feed) })
	t.Cleanup(func() {
		wire.Close()
		feed.Close()
		running.Wait()
	})
}

func (s *standIn) copy(to, from *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, unix.ENETDOWN) { // told once; it goes on when the interface does
			continue
		}
		if err != nil {
			return
		}
		s.frozen.RLock()
		to.Write(buf[:n]) // a frame may be refused, as on any wire
		s.frozen.RUnlock()
	}
}

// packetSocket carries whole frames with their offload state.
func packetSocket(link string) (*os.File, error) {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	for _, opt := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), link), nil
}

// serve echoes lines on echoPort, TCP and UDP.
func (s *standIn) serve(t testing.TB, f plan) {
	at := fmt.Sprintf(":%d", echoPort)
	ln := inside(t, s.ns, func() (net.Listener, error) { return net.Listen(f.tcp(), at) })
	pc := inside(t, s.ns, func() (net.PacketConn, error) { return net.ListenPacket(f.udp(), at) })
	t.Cleanup(func() { ln.Close(); pc.Close() })
	go echoTCP(ln)
	go echoUDP(pc)
}

func echoTCP(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}()
	}
}

func echoUDP(pc net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		pc.WriteTo(buf[:n], from)
	}
}

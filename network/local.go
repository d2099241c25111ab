package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What processes in P say to a loopback address, as containerd's port-forward does, or to the pod's own address, means the
// workload, whose loopback is another one. Rules in tables of their own give each such connection to one listener of
// ours, whatever its port; a server in P itself comes first. No packet of others passes these rules, and none of the
// sandbox's. They are tables of their own because rules with tproxy can't be read back.

// The addresses from which P's own connections reach the sandbox over the link: it takes none from a loopback address or its own. They
// are known nowhere else. That of IPv6 is a local one (RFC 4193): an answer to one of the link alone would be the sandbox's to resolve.
var (
	localClient4 = netip.AddrPortFrom(netip.MustParseAddr("169.254.42.2"), 0)
	localClient6 = netip.AddrPortFrom(netip.MustParseAddr("fd68:6962:6572::2"), 0)
)

// LocalClients are the clients as which P's own connections are dialled, of each family that the pod has; the one for a client that dialled
// by family comes first.
func (l *Link) LocalClients(client netip.Addr) (list []netip.AddrPort) {
	for _, c := range []netip.AddrPort{localClient4, localClient6} {
		switch {
		case !l.attachment.carries(familyOf(c.Addr())):
		case familyOf(c.Addr()) == familyOf(client):
			list = slices.Insert(list, 0, c)
		default:
			list = append(list, c)
		}
	}
	return list
}

const (
	chainLocal   = "local"
	chainProbes  = "maybe-probes"
	counterLocal = "local" // tells that the table is there
)

// local is where connections go that listeners of a family take, by the listener's port; 0 is nowhere.
type local struct {
	family *family
	inside uint16         // those of P's own
	probes uint16         // those that may be probes, while the gate is held
	from   []netip.Prefix // where these come from
}

// ListenLocal makes the listeners that get TCP connections from inside P, to a loopback address or to the pod's own. The
// address that a connection was made to is its own local one. One listener for IPv4, and one for IPv6 where there is any.
// They are in non-blocking mode and the caller's; when they are closed, P's kernel refuses such connections again.
func (l *Link) ListenLocal(ctx context.Context) (listeners []*os.File, err error) {
	return l.listenAny(ctx, func(to *local, port uint16) { to.inside = port })
}

// ListenProbes makes the listeners that get, in the place of those of [Link.Listen], the connections from given networks while
// the gate is held, whatever the port. The rest is as with ListenLocal.
func (l *Link) ListenProbes(ctx context.Context, from []netip.Prefix) (listeners []*os.File, err error) {
	return l.listenAny(ctx, func(to *local, port uint16) {
		to.probes, to.from = port, slices.DeleteFunc(slices.Clone(from), func(p netip.Prefix) bool { return familyOf(p.Addr()) != to.family })
	})
}

// listenAny listens in each family, and has set note where.
func (l *Link) listenAny(ctx context.Context, set func(*local, uint16)) (listeners []*os.File, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	to := l.wantedLocal()
	for _, f := range families {
		ln, port, err := l.listenWildcard(f.all.Addr())
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) { // without IPv6
			continue
		}
		if err != nil {
			closeAll(listeners)
			return nil, fmt.Errorf("listen in %s: %w", l.pod.ns.Name(), err)
		}
		i := slices.IndexFunc(to, func(t local) bool { return t.family == f })
		if i < 0 {
			i, to = len(to), append(to, local{family: f})
		}
		set(&to[i], port)
		listeners = append(listeners, ln)
	}
	l.gateMu.Lock()
	defer l.gateMu.Unlock()
	l.mu.Lock()
	l.local = to
	l.mu.Unlock()
	if err := l.writeLocal(ctx); err != nil {
		closeAll(listeners)
		return nil, err
	}
	return listeners, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// listenWildcard listens on a port that the kernel picks.
func (l *Link) listenWildcard(wildcard netip.Addr) (f *os.File, port uint16, err error) {
	err = enter(l.pod.ns, func() (err error) {
		f, err = streamSocket(wildcard)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	err = control(raw, func(fd int) (err error) {
		options := []socketOption{transparentOption(wildcard)}
		if !wildcard.Is4() {
			options = append(options, socketOption{"IPv6 only", unix.SOL_IPV6, unix.IPV6_V6ONLY, 1})
		}
		if err := setOptions(fd, options...); err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(wildcard, 0))); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if port, err = boundPort(fd); err != nil {
			return err
		}
		return os.NewSyscallError("listen", unix.Listen(fd, localBacklog))
	})
	return f, port, err
}

// localBacklog is how many connections from inside P wait at most.
const localBacklog = 128

func boundPort(fd int) (uint16, error) {
	sa, err := unix.Getsockname(fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port), nil
	case *unix.SockaddrInet6:
		return uint16(sa.Port), nil
	}
	return 0, os.NewSyscallError("getsockname", errors.Join(err, unix.EINVAL))
}

// wantedLocal is where P's own connections are to go.
func (l *Link) wantedLocal() []local {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.local)
}

// writeLocal makes the tables anew, in one transaction.
func (l *Link) writeLocal(ctx context.Context) error {
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		for _, to := range l.wantedLocal() {
			t := to.table()
			c.AddTable(t)
			c.DelTable(t)
			c.AddTable(t)
			c.AddObj(&nftables.CounterObj{Table: t, Name: counterLocal})
			for _, want := range []chain{to.ofInside(), to.ofProbes(l.attachment.Interface)} {
				in := c.AddChain(want.in(t))
				for _, r := range want.rules {
					c.AddRule(&nftables.Rule{Table: t, Chain: in, Exprs: r.exprs, UserData: comment(r.comment)})
				}
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nft tables for connections from inside the pod: %w", err)
		}
		return nil
	})
}

func (to local) table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamily(to.family.nf)}
}

func (to local) ofInside() chain {
	c := chain{
		name: chainLocal, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityMangle, policy: nftables.ChainPolicyAccept,
	}
	if to.inside != 0 {
		c.rules = []rule{
			when("P's own server", from(loopbackName), opening(), toPlainListener(), accept()),
			when("to the workload", from(loopbackName), opening(), count(counterLocal), to.proxied(to.inside), accept()),
		}
	}
	return c
}

// ofProbes comes after the gate: what that leaves to P's listeners has no mark.
func (to local) ofProbes(primary string) chain {
	c := chain{name: chainProbes, hook: nftables.ChainHookPrerouting, priority: afterGate, policy: nftables.ChainPolicyAccept}
	for _, p := range to.from {
		c.rules = append(c.rules, when("maybe a probe", from(primary), opening(), unmarked(), to.family.within(to.family.source, p),
			ofSocket(expr.SocketKeyWildcard), to.proxied(to.probes), accept()))
	}
	return c
}

var afterGate = nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)

func unmarked() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(markMask), Xor: make([]byte, 4)},
		compare(expr.CmpOpEq, 0, 0, 0, 0),
	}
}

const loopbackName = "lo"

// toPlainListener matches a segment for which P has a listener that is none of ours.
func toPlainListener() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyTransparent, Register: reg}, compare(expr.CmpOpEq, 0)}
}

// proxied gives a segment to the listener; it matches nothing when that is closed.
func (to local) proxied(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.TProxy{Family: to.family.nf, TableFamily: to.family.nf, RegPort: reg},
	}
}

// checkLocal: each table is there. Rules with tproxy can't be read back, the counter beside them can.
func (l *Link) checkLocal(ctx context.Context) error {
	return l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		for _, to := range l.wantedLocal() {
			t := to.table()
			if _, err := c.GetObject(&nftables.CounterObj{Table: t, Name: counterLocal}); err != nil {
				return fmt.Errorf("nft table for connections from inside the pod: %w", err)
			}
		}
		return nil
	})
}

// removeLocal deletes the tables where there are any.
func removeLocal(ctx context.Context, pod *side) error {
	return pod.withNFT(ctx, func(c *nftables.Conn) error {
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
			list, err := c.ListTablesOfFamily(family)
			if err != nil {
				return fmt.Errorf("list nft tables: %w", err)
			}
			for _, t := range list {
				if t.Name == tableName {
					c.DelTable(t)
				}
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("delete nft tables: %w", err)
		}
		return nil
	})
}

package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What others put into P to see or to filter its traffic must go on seeing it, so the fast path stays off while there is
// any of it. It may come at any time: it is looked for a moment after the gate has opened, before the fast path goes on, and
// whenever the counters are read.

// heedObstacles looks for what forbids the fast path, and follows it.
func (l *Link) heedObstacles(ctx context.Context) error {
	f := &l.fast
	f.mu.Lock()
	before, looked, off, open := f.obstacle, f.generation, f.refused != "", f.open
	f.mu.Unlock()
	if off {
		return nil
	}
	what, generation, err := l.findObstacle(ctx, before, looked)
	if ctx.Err() != nil {
		return fmt.Errorf("look for what forbids the fast path: %w", ctx.Err())
	}
	if err != nil { // no reason to leave a gate closed: P's way is always right
		what = fmt.Sprintf("what others have in the pod can't be told: %v", err)
	}
	return f.set(func() {
		f.obstacle, f.generation = what, generation
		f.heeded = f.heeded || open && f.open
	})
}

// findObstacle looks through the nft rules only if they were changed since the generation looked.
func (l *Link) findObstacle(ctx context.Context, before string, looked uint32) (what string, generation uint32, err error) {
	err = l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		if generation, err = rulesGeneration(l.pod.socket); err != nil || generation == looked && before == "" {
			return err
		}
		what, err = foreignChains(c)
		return err
	})
	for _, look := range []func() (string, error){l.misplaced, l.foreignPrograms, l.foreignQdisc, l.foreignLegacy, l.foreignPolicies} {
		if err != nil || what != "" {
			break
		}
		what, err = look()
	}
	return what, generation, err
}

// misplaced finds that an interface is another than the programs were made for: what they sent there would be lost.
func (l *Link) misplaced() (string, error) {
	at, err := l.fastPlaces()
	if err != nil && !errors.Is(err, errNoLink) {
		return "", err
	}
	l.fast.mu.Lock()
	defer l.fast.mu.Unlock()
	if p := l.fast.programs; err != nil || p != nil && !p.at(at) {
		return misplaced, nil
	}
	return "", nil
}

// foreignChains names the first chain of others that holds rules or drops.
func foreignChains(c *nftables.Conn) (string, error) {
	chains, err := c.ListChains()
	if err != nil {
		return "", fmt.Errorf("list nft chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name == tableName {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return "", fmt.Errorf("list nft rules: %w", err)
		}
		if len(rules) > 0 || chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop {
			return fmt.Sprintf("others' rules in the pod: nft table %s chain %s", chain.Table.Name, chain.Name), nil
		}
	}
	return "", nil
}

// rulesGeneration changes with each change of a namespace's nft rules, by whomever.
func rulesGeneration(c *mdnetlink.Conn) (uint32, error) {
	answers, err := c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: mdnetlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("generation of the nft rules: %w", err)
	}
	for _, m := range answers {
		if len(m.Data) < 4 {
			continue
		}
		attributes, err := mdnetlink.UnmarshalAttributes(m.Data[4:])
		if err != nil {
			return 0, fmt.Errorf("generation of the nft rules: %w", err)
		}
		for _, a := range attributes {
			if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
				return binary.BigEndian.Uint32(a.Data), nil
			}
		}
	}
	return 0, errors.New("the nft rules have no generation")
}

// foreignPrograms finds programs of others where ours would pass them by. Without the means to ask, there are none.
func (l *Link) foreignPrograms() (what string, err error) {
	primary, err := l.pod.link(l.attachment.Interface)
	if err != nil || primary == nil {
		return "", err
	}
	l.fast.mu.Lock()
	ours := map[ebpf.ProgramID]bool{}
	if l.fast.programs != nil {
		for _, one := range l.fast.programs.links {
			if info, err := one.Info(); err == nil {
				ours[info.Program] = true
			}
		}
	}
	l.fast.mu.Unlock()
	err = enter(l.pod.ns, func() error {
		list, err := link.QueryPrograms(link.QueryOptions{Target: primary.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		for _, p := range list.Programs {
			if !ours[p.ID] {
				what = fmt.Sprintf("others' program at %s", l.attachment.Interface)
			}
		}
		return nil
	})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return "", nil // attaching will be refused, too
	}
	return what, err
}

// foreignQdisc finds a filter's place at the pod's interface: ours would come before it.
func (l *Link) foreignQdisc() (string, error) {
	primary, err := l.pod.link(l.attachment.Interface)
	if err != nil || primary == nil {
		return "", err
	}
	list, err := l.pod.route.QdiscList(primary)
	if err != nil {
		return "", fmt.Errorf("traffic control of %s: %w", l.attachment.Interface, err)
	}
	for _, q := range list {
		if kind := q.Type(); kind == "clsact" || kind == "ingress" {
			return fmt.Sprintf("others' traffic control at %s: %s", l.attachment.Interface, kind), nil
		}
	}
	return "", nil
}

// foreignLegacy finds rules of the old iptables.
func (l *Link) foreignLegacy() (string, error) {
	filled, err := filledTables(l.pod)
	if err != nil || len(filled) == 0 {
		return "", err
	}
	return "others' rules in the pod: iptables (legacy) table " + filled[0], nil
}

// foreignPolicies finds IPsec's: what P encrypts, or takes only encrypted.
func (l *Link) foreignPolicies() (what string, err error) {
	err = enter(l.pod.ns, func() error {
		list, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
		if len(list) > 0 {
			what = fmt.Sprintf("others' rules in the pod: IPsec policy %v", list[0].Dir)
		}
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return "", nil // a kernel without
	}
	if err != nil {
		return "", fmt.Errorf("IPsec policies: %w", err)
	}
	return what, nil
}

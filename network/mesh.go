package network

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// foreignRules describes everything in P that rewrites or marks packets and is
// not ours: nft, iptables on nft, old iptables, routing rules by mark.
func foreignRules(ctx context.Context, pod *side) ([]string, error) {
	found, err := foreignNFT(ctx, pod)
	if err != nil {
		return nil, err
	}
	for _, look := range []func(*side) ([]string, error){foreignPolicy, legacyTables} {
		more, err := look(pod)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

func foreignNFT(ctx context.Context, pod *side) (found []string, err error) {
	err = pod.withNFT(ctx, func(c *nftables.Conn) error {
		chains, err := c.ListChains()
		if err != nil {
			return fmt.Errorf("list nft chains: %w", err)
		}
		for _, chain := range chains {
			if chain.Table.Name == tableName {
				continue
			}
			rules, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return fmt.Errorf("list nft rules: %w", err)
			}
			if what := interferes(chain, rules); what != "" {
				found = append(found, fmt.Sprintf("nft table %s chain %s: %s", chain.Table.Name, chain.Name, what))
			}
		}
		return nil
	})
	return found, err
}

func interferes(chain *nftables.Chain, rules []*nftables.Rule) string {
	if chain.Type == nftables.ChainTypeNAT && len(rules) > 0 {
		return "nat rules"
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if what := rewrites(e); what != "" {
				return what
			}
		}
	}
	return ""
}

var rewritingTargets = map[string]bool{
	"MARK": true, "CONNMARK": true, "DNAT": true, "SNAT": true,
	"REDIRECT": true, "MASQUERADE": true, "NETMAP": true, "TPROXY": true,
}

func rewrites(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Meta:
		if e.SourceRegister && e.Key == expr.MetaKeyMARK {
			return "sets the mark"
		}
	case *expr.Ct:
		if e.SourceRegister && e.Key == expr.CtKeyMARK {
			return "sets the connection mark"
		}
	case *expr.Target:
		if rewritingTargets[e.Name] {
			return "target " + e.Name
		}
	case *expr.NAT, *expr.Masq, *expr.Redir:
		return "nat"
	case *expr.TProxy:
		return "tproxy"
	}
	return ""
}

func foreignPolicy(pod *side) ([]string, error) {
	rules, err := pod.route.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	var found []string
	for _, r := range rules {
		if r.Mark != 0 && r.Table != tableSandbox && r.Table != tableLocal {
			found = append(found, fmt.Sprintf("routing rule for mark %#x to table %d", r.Mark, r.Table))
		}
	}
	return found, nil
}

// legacyTables are those of the old iptables that rewrite packets or mark them.
func legacyTables(pod *side) (found []string, err error) {
	filled, err := filledTables(pod)
	for _, name := range filled {
		if name == "nat" || name == "mangle" {
			found = append(found, "iptables (legacy) table "+name)
		}
	}
	return found, err
}

// filledTables are those of the old iptables with rules in them. They exist in a
// namespace once somebody touched them there.
func filledTables(pod *side) (found []string, err error) {
	err = enter(pod.ns, func() error {
		found, err = filledHere()
		return err
	})
	return found, err
}

// filledHere is filledTables for the thread's namespace.
func filledHere() (found []string, err error) {
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("old iptables: %w", err)
	}
	for _, name := range strings.Fields(string(names)) {
		if filled, err := legacyFilled(name); err != nil {
			return nil, err
		} else if filled {
			found = append(found, name)
		}
	}
	return found, nil
}

// legacyInfo is the kernel's struct ipt_getinfo.
type legacyInfo struct {
	name       [32]byte
	validHooks uint32
	_          [5 + 5]uint32
	entries    uint32
	size       uint32
}

// legacyFilled: an empty table has one entry a hook, and the closing one.
func legacyFilled(name string) (bool, error) {
	const soGetInfo = 64 // IPT_SO_GET_INFO
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, fmt.Errorf("old iptables: %w", err)
	}
	defer unix.Close(fd)
	var info legacyInfo
	copy(info.name[:], name)
	size := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, soGetInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return false, fmt.Errorf("old iptables table %s: %w", name, e)
	}
	return int(info.entries) > bits.OnesCount32(info.validHooks)+1, nil
}

package network_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dump lists everything of a namespace that the package could have touched, once the kernel itself has come to rest.
func dump(t *testing.T, ns string) []string {
	t.Helper()
	h := handle(t, ns)
	eventually(t, "each address of IPv6 is known to be nobody else's", func() bool {
		list, err := h.AddrList(nil, netlink.FAMILY_V6)
		must(t, err)
		return !slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
	})
	var out []string
	add := func(kind string, v any) { out = append(out, fmt.Sprintf("%s %+v", kind, v)) }
	links, err := h.LinkList()
	must(t, err)
	for _, l := range links {
		a := l.Attrs()
		add("link", fmt.Sprint(a.Index, a.Name, a.Flags, a.MTU, a.HardwareAddr, a.Alias, a.OperState))
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		for _, a := range addrs {
			add("address", fmt.Sprint(a.IPNet, a.Scope, a.Label, a.Flags))
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			add("route", fmt.Sprint(r.String(), r.Type, r.Protocol, r.Scope))
		}
		rules, err := h.RuleList(family)
		must(t, err)
		for _, r := range rules {
			mask := uint32(0)
			if r.Mask != nil {
				mask = *r.Mask
			}
			add("rule", fmt.Sprint(r.String(), r.Mark, mask, r.Protocol))
		}
	}
	for _, line := range nftTables(t, ns) {
		add("nft", line)
	}
	out = append(out, sysctls(t, ns)...)
	slices.Sort(out)
	return out
}

func nft(t *testing.T, ns string) *nftables.Conn {
	t.Helper()
	f, err := os.Open(ns)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Fd())))
	must(t, err)
	return c
}

func nftTables(t *testing.T, ns string) []string {
	t.Helper()
	tables, err := nft(t, ns).ListTables()
	must(t, err)
	var out []string
	for _, table := range tables {
		out = append(out, fmt.Sprint(table.Family, table.Name))
	}
	return out
}

func flushRuleset(t *testing.T, ns string) {
	t.Helper()
	c := nft(t, ns)
	c.FlushRuleset()
	must(t, c.Flush())
}

func sysctls(t *testing.T, ns string) []string {
	t.Helper()
	return inside(t, ns, func() ([]string, error) {
		var out []string
		err := filepath.WalkDir("/proc/sys/net", func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil || strings.Contains(path, "random") {
				return nil // some can't be read
			}
			out = append(out, "sysctl "+path+" "+strings.TrimSpace(string(b)))
			return nil
		})
		return out, err
	})
}

// same reports the first differences of two dumps.
func same(t *testing.T, before, after []string) {
	t.Helper()
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("new: %s", line)
		}
	}
}

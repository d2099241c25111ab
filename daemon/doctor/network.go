package doctor

import (
	"context"
	"fmt"
	"runtime"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tryNetwork makes a network namespace, and in it a veth pair and a table like the gate's. All is gone with the thread that made it.
func tryNetwork(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its namespace with it
		done <- inNewNamespace()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the kernel doesn't answer: %w", context.Cause(ctx))
	}
}

func inNewNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "doctor0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "doctor1"}); err != nil {
		return fmt.Errorf("a veth pair (module veth): %w", err)
	}
	for _, try := range []struct {
		what  string
		chain nftables.Chain
		exprs []expr.Any
	}{
		{"rules of nft (module nf_tables)", filter, []expr.Any{&expr.Counter{}}},
		{"log rules to programs (module nfnetlink_log)", filter, []expr.Any{&expr.Log{Key: 1 << unix.NFTA_LOG_GROUP, Group: 77}}},
		{"rules that look for sockets (module nft_socket)", filter, []expr.Any{&expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}}},
		{"transparent proxying (module nft_tproxy)", filter, append(tcp(), &expr.Immediate{Register: 1, Data: []byte{0, 77}},
			&expr.TProxy{Family: byte(nftables.TableFamilyIPv4), TableFamily: byte(nftables.TableFamilyIPv4), RegPort: 1})},
		{"refusals (module nft_reject)", refuse, append(tcp(), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
	} {
		if err := tryRule(try.chain, try.exprs); err != nil {
			return fmt.Errorf("%s: %w", try.what, err)
		}
	}
	return nil
}

var (
	filter = nftables.Chain{Name: "try", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle}
	refuse = nftables.Chain{Name: "try", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter}
)

// tcp matches it, as some expressions want.
func tcp() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: []byte{unix.IPPROTO_TCP}},
	}
}

// tryRule makes a table with one rule.
func tryRule(chain nftables.Chain, exprs []expr.Any) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "doctor"})
	chain.Table = table
	c.AddRule(&nftables.Rule{Table: table, Chain: c.AddChain(&chain), Exprs: exprs})
	if err := c.Flush(); err != nil {
		return err
	}
	c.DelTable(table)
	return c.Flush()
}

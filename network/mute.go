package network

import (
	"context"
	"fmt"

	"github.com/google/nftables"
)

const arpIn = 0 // NF_ARP_IN

// While the pod's address is on eth0 for runsc to read, I's own kernel would
// answer peers with resets. The sandbox takes its packets before netfilter, so
// this does not touch it.
func muteChains() (*nftables.Table, []chain) {
	drops := nftables.ChainPolicyDrop
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}, []chain{
		{name: "input", hook: nftables.ChainHookInput, priority: nftables.ChainPriorityRaw, policy: drops},
		{name: "output", hook: nftables.ChainHookOutput, priority: nftables.ChainPriorityRaw, policy: drops},
	}
}

// The other direction: P learns nothing about its neighbour from the wire, only
// from Connect. An ARP packet from a paused sandbox would else fill the entry
// that a kept packet waits for.
func deafChains() (*nftables.Table, []chain) {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyARP}, []chain{{
		name: "input", hook: nftables.ChainHookRef(arpIn), priority: nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept,
		rules: []rule{when("nothing is learnt from the sandbox", from(outerName), drop())},
	}}
}

func putTable(ctx context.Context, s *side, t *nftables.Table, chains []chain) error {
	return s.withNFT(ctx, func(c *nftables.Conn) error {
		c.AddTable(t)
		c.DelTable(t)
		c.AddTable(t)
		for _, ch := range chains {
			added := c.AddChain(ch.in(t))
			for _, r := range ch.rules {
				c.AddRule(&nftables.Rule{Table: t, Chain: added, Exprs: r.exprs, UserData: comment(r.comment)})
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nft table %s: %w", t.Name, err)
		}
		return nil
	})
}

func checkTable(ctx context.Context, s *side, t *nftables.Table, chains []chain) error {
	return s.withNFT(ctx, func(c *nftables.Conn) error { return checkChains(c, t, chains) })
}

func (l *Link) mute(ctx context.Context) error {
	t, chains := muteChains()
	return putTable(ctx, l.inner, t, chains)
}

func (l *Link) checkMute(ctx context.Context) error {
	t, chains := muteChains()
	return checkTable(ctx, l.inner, t, chains)
}

func (l *Link) deafen(ctx context.Context) error {
	t, chains := deafChains()
	return putTable(ctx, l.pod, t, chains)
}

func (l *Link) checkDeaf(ctx context.Context) error {
	t, chains := deafChains()
	return checkTable(ctx, l.pod, t, chains)
}

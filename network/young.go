package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// While the gate is open nobody stands between probes and the sandbox, and by a packet alone a probe can't be told from use. So
// a new connection from where probes come is *young* for some seconds, and no use by itself; what its client says meanwhile is
// shown, and whoever finds that it is no probe's ends its youth by [Link.Used]. What lives longer is use. The rules
// note such connections by the client's address and port; the fast path leaves them to the rules.

const (
	youth        = 10 * time.Second
	chainYoung   = "young"
	chainProbers = "probers"
	counterYoung = "young"
	youngGroup   = useGroup + 1 // where they are shown; see logGroup
	youngCopied  = 4 << 10
	youngAtMost  = 4096
	youngFast    = 256 // on the fast path; those that fell out of its map are counted there
	// More new connections in a second than any probes make, or segments of theirs, are use.
	youngRate, youngBurst = 50, 200
)

// Said is a segment with data of a young connection, in the order in which they come.
type Said struct {
	Use
	Data []byte
}

// youngSet holds the young connections of the family.
func (f *family) youngSet(t *nftables.Table) *nftables.Set {
	address := nftables.TypeIPAddr
	if f == ip6 {
		address = nftables.TypeIP6Addr
	}
	return &nftables.Set{
		Table: t, Name: chainYoung + f.suffix, ID: 9 + uint32(f.address), Concatenation: true, Dynamic: true, HasTimeout: true, Size: youngAtMost,
		KeyType: nftables.MustConcatSetType(address, nftables.TypeInetService),
	}
}

// fromProbers are the sources of the family.
func (f *family) fromProbers(list []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		if familyOf(p.Addr()) == f {
			out = append(out, p)
		}
	}
	return out
}

// youngRules are before all that count. In the cut an answer counts, whoever asked: it is lost.
func (f *familyRules) youngRules() (rules []rule) {
	if f.young == nil {
		return nil
	}
	return append(rules,
		when("opens", notFrom(outerName), f.whole(unix.IPPROTO_TCP), opening(), jump(chainProbers+f.suffix)),
		when("young, in", notFrom(outerName), f.whole(unix.IPPROTO_TCP), protocol(unix.IPPROTO_TCP), f.connection(f.source, 0), f.isYoung(), goTo(chainYoung+f.suffix)),
		when("young, out", from(outerName), f.whole(unix.IPPROTO_TCP), protocol(unix.IPPROTO_TCP), f.connection(f.destination, 2), f.isYoung(), count(counterYoung), leave()))
}

// probersChain begins the youth of those that come from where probes do.
func (f *familyRules) probersChain(l *Link) chain {
	c := chain{name: chainProbers + f.suffix}
	for n, p := range f.fromProbers(l.probers) {
		c.rules = append(c.rules, when(fmt.Sprintf("may be a probe, %d", n+1), f.within(f.source, p),
			limit(), f.connection(f.source, 0), f.note(l.youth), leave()))
	}
	return c
}

// youngChain is for what comes in.
func (f *familyRules) youngChain() chain {
	return chain{name: chainYoung + f.suffix, rules: []rule{
		when("count", count(counterYoung)),
		when("show what is said", f.sizedNotIn(f.empty), limit(), []expr.Any{
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: youngGroup, Snaplen: youngCopied}}),
	}}
}

func limit() []expr.Any {
	return []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: youngRate, Unit: expr.LimitTimeSecond, Burst: youngBurst}}
}

// connection loads the other side's address and port, which are at these offsets in their headers, into registers that follow one another.
func (f *family) connection(address, port uint32) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: f.address},
		&expr.Payload{DestRegister: unix.NFT_REG32_00 + f.address/4, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
	}
}

func (f *familyRules) note(youth time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: unix.NFT_REG32_00, SetName: f.young.Name, SetID: f.young.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: youth,
	}}
}

func (f *familyRules) isYoung() []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: f.young.Name, SetID: f.young.ID}}
}

// youngKey is how the set knows a connection.
func youngKey(client netip.AddrPort) []byte {
	return append(client.Addr().AsSlice(), append(binaryutil.BigEndian.PutUint16(client.Port()), 0, 0)...)
}

// Saids tells what clients say on young connections, until ctx ends. Then the error is nil. Without probes there are none.
func (l *Link) Saids(ctx context.Context, tell func(Said)) error {
	return l.watchLog(ctx, youngGroup, youngCopied, func(p []byte) {
		u, ok := l.parseUse(p)
		if !ok || u.Outward {
			return
		}
		at := ipv6Header
		if p[0]>>4 == 4 {
			at = int(p[0]&15) * 4
		}
		if len(p) <= at+12 {
			return
		}
		if at += int(p[at+12]>>4) * 4; at < len(p) {
			tell(Said{u, p[at:]})
		}
	})
}

// Used ends the youth of the connection that said something, for it is no probe's: that is counted as use, and all that follows.
func (l *Link) Used(ctx context.Context, s Said) error {
	l.mu.Lock()
	once := Counters{1, uint64(len(s.Data))}
	l.base, l.used = l.base.plus(once), l.used.plus(once)
	l.mu.Unlock()
	f := familyOf(s.Peer.Addr())
	if err := l.fast.grown(s.Peer); err != nil {
		return err
	}
	set := f.youngSet(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
	err := l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		if err := c.SetDeleteElements(set, []nftables.SetElement{{Key: youngKey(s.Peer)}}); err != nil {
			return err
		}
		return c.Flush()
	})
	if errors.Is(err, unix.ENOENT) { // it has grown up by itself
		err = nil
	}
	if err != nil {
		return fmt.Errorf("count the connection of %s: %w", s.Peer, err)
	}
	return nil
}

func (f *family) youngKeySize() uint32 { return f.address + 4 }

// young leaves segments of young connections to the rules; who opens one begins its youth. The other side's address and port are at these
// offsets in the frame.
func (f *fastFamily) young(address, port int16, opens bool) asm.Instructions {
	grown, known := f.label("grown"), f.label("known")
	if len(f.probes) == 0 {
		return nil
	}
	out := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, f.atProtocol(), asm.Byte),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, grown),
	}
	out = append(out, f.among(address, f.probes, "a prober's", grown)...)
	out = append(out, copyWords(asm.RFP, stackKey, asm.R7, address, int16(f.address/4))...)
	out = append(out,
		asm.LoadMem(asm.R1, asm.R7, port, asm.Half),
		asm.StoreMem(asm.RFP, stackKey+int16(f.address), asm.R1, asm.Word),
		asm.FnKtimeGetCoarseNs.Call(),
		asm.StoreMem(asm.RFP, stackNow, asm.R0, asm.DWord),
	)
	if opens {
		out = append(out,
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.Add.Imm(asm.R1, int32(f.at(shortestTCP))),
			asm.JGT.Reg(asm.R1, asm.R8, toSlow),
			asm.LoadMem(asm.R1, asm.R7, f.at(13), asm.Byte),
			asm.And.Imm32(asm.R1, fin|syn|rst|ack),
			asm.JNE.Imm(asm.R1, syn, known),
			asm.LoadMem(asm.R1, asm.RFP, stackNow, asm.DWord),
			asm.LoadImm(asm.R2, f.spec.youth.Nanoseconds(), asm.DWord),
			asm.Add.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.RFP, stackNow, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, f.youngs.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, stackKey),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, stackNow),
			asm.Mov.Imm(asm.R4, 0), // BPF_ANY
			asm.FnMapUpdateElem.Call(),
			asm.Ja.Label(toSlow),
		)
	}
	return append(out,
		asm.LoadMapPtr(asm.R1, f.youngs.FD()).WithSymbol(known),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, grown),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, stackNow, asm.DWord),
		asm.JLT.Reg(asm.R2, asm.R1, toSlow),
		asm.Mov.Imm(asm.R1, 0).WithSymbol(grown),
	)
}

// grown has a connection take the fast path.
func (f *fastPath) grown(client netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.maps == nil {
		return nil
	}
	youngs := f.maps.youngs[familyOf(client.Addr())]
	if youngs == nil {
		return nil
	}
	if err := youngs.Delete(youngKey(client)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("count the connection of %s: %w", client, err)
	}
	return nil
}

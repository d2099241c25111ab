package network

import (
	"context"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// While a program of the workload's own runs before it sleeps, both use the network. A gate with Clients tells apart what *others*
// begin: use that comes in, to a port of the gate's, or on a connection on which the sandbox has said nothing since the gate
// was set. Answers to what the sandbox has said are its own. Probes and what is ignored are no use here, either. All packets go through the rules then.

const (
	chainClients   = "clients"
	chainAsks      = "asks"
	counterClients = "clients"
	byClients      = "by others" // the rule by which the position is read back
	askedAtMost    = 4096        // connections; answers on further ones are taken for others' use
)

// askedSet holds (address, port) of others and the sandbox's port, on which it has spoken.
func (f *family) askedSet(t *nftables.Table) *nftables.Set {
	address := nftables.TypeIPAddr
	if f == ip6 {
		address = nftables.TypeIP6Addr
	}
	return &nftables.Set{
		Table: t, Name: "asked" + f.suffix, ID: 40 + f.address, Concatenation: true, Dynamic: true, Size: askedAtMost,
		KeyType: nftables.MustConcatSetType(address, nftables.TypeInetService, nftables.TypeInetService),
	}
}

// conversation loads the other side's address and port, and the sandbox's port, which are at these offsets in their headers.
func (f *family) conversation(address, port, own uint32) []expr.Any {
	return append(f.connection(address, port),
		&expr.Payload{DestRegister: unix.NFT_REG32_00 + f.address/4 + 1, Base: expr.PayloadBaseTransportHeader, Offset: own, Len: 2})
}

// asks notes on which connections the sandbox speaks. An acknowledgement says nothing.
func (f *familyRules) asks() chain {
	note := func(protocolOf byte) []expr.Any {
		return append(append(f.whole(protocolOf), protocol(protocolOf)...), append(f.conversation(f.destination, 2, 0),
			&expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: f.asked.Name, SetID: f.asked.ID, Operation: unix.NFT_DYNSET_OP_ADD})...)
	}
	return chain{name: chainAsks + f.suffix, rules: []rule{
		when("datagram", protocol(unix.IPPROTO_UDP), note(unix.IPPROTO_UDP), leave()),
		when("neither", notProtocol(unix.IPPROTO_TCP), leave()),
		when("long", f.longer(longestTCP+1), note(unix.IPPROTO_TCP), leave()),
		when("opens, closes or pushes", tcpFlags(fin|syn|psh, expr.CmpOpNeq, 0), note(unix.IPPROTO_TCP), leave()),
		when("data", f.sizedNotIn(f.empty), note(unix.IPPROTO_TCP), leave()),
	}}
}

// clients counts what others begin. It comes after the chain activity, by which a probe is young already.
func (f *familyRules) clients(l *Link) chain {
	before := f.ignored(l.ignore)
	if f.young != nil {
		before = append(before, when("young", f.whole(unix.IPPROTO_TCP), protocol(unix.IPPROTO_TCP), f.connection(f.source, 0), f.isYoung(), leave()))
	}
	asked := []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: f.asked.Name, SetID: f.asked.ID}}
	before = append(before,
		when("an answer", f.whole(unix.IPPROTO_TCP), protocol(unix.IPPROTO_TCP), notToPort(f.ports), f.conversation(f.source, 0, 2), asked, leave()),
		when("a datagram that answers", f.whole(unix.IPPROTO_UDP), protocol(unix.IPPROTO_UDP), f.conversation(f.source, 0, 2), asked, leave()))
	return f.activity(before, chainClients, counterClients)
}

// ByClients reads what others have begun since the table was made; what is of interest is whether it changes while the gate has Clients.
func (l *Link) ByClients(ctx context.Context) (Counters, error) {
	c, err := l.counter(ctx, counterClients)
	if err != nil {
		return Counters{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.plus(l.used), nil
}

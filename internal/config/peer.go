package config

import (
	"errors"
	"net"
)

// peerKeys are about nodes that ask each other.
func peerKeys() []Key {
	return []Key{
		setting[string]{
			name: "peer-address", scope: ScopeNode, def: raw{""}, codec: text("host:port, or empty for none", listenAddress),
			field: func(c *Config) *string { return &c.PeerAddress },
			doc: "Where hibernated answers the other nodes that share its store, over mutual TLS: a workload then comes straight from the node where it sleeps, also " +
				"before the store has it. Needs store. Empty: it comes by the store alone.",
		}.key(),
		setting[string]{
			name: "peer-advertise", scope: ScopeNode, def: raw{""}, codec: text("host:port, or empty for that of peer-address", contactAddress),
			field: func(c *Config) *string { return &c.PeerAdvertise },
			doc:   "Where other nodes find peer-address. Empty: there, and where that names no address (0.0.0.0, [::], :port) at the host's name.",
		}.key(),
	}
}

// contactAddress is one that others can use.
func contactAddress(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || port == "" || port == "0" {
		return errors.New("not host:port")
	}
	return nil
}

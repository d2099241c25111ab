package config

import "time"

// holdKeys bound what the clients of one sleeping workload may take.
func holdKeys() []Key {
	return []Key{
		setting[time.Duration]{
			name: "hold-timeout", scope: ScopeWorkload, codec: span(time.Second, time.Hour, ""), def: raw{"1m"},
			field: func(c *Config) *time.Duration { return &c.HoldTimeout },
			doc: "How long connections wait at most for it to wake: for its turn, and for all tries; then they are answered " +
				"as refuse-with says.",
			tighten: "only shorter",
			allows:  func(node, asked time.Duration) bool { return asked <= node },
		}.key(),
		setting[int]{
			name: "max-backlog", scope: ScopeWorkload, codec: number(1, 65535, ""), def: raw{"16384"},
			field:   func(c *Config) *int { return &c.MaxBacklog },
			doc:     "How many connections to one port wait for the wake, in the kernel. Those beyond get no answer until there is room.",
			tighten: "only fewer",
			allows:  func(node, asked int) bool { return asked <= node },
		}.key(),
		setting[uint64]{
			name: "max-held-bytes", scope: ScopeWorkload, codec: size, def: raw{"256MiB"},
			field: func(c *Config) *uint64 { return &c.MaxHeldBytes },
			doc: "How much the clients of one port may send ahead, together: each has its share of it by max-backlog, but from " +
				"4KiB to 64KiB. What is more waits at the client; after the wake there is no such limit.",
			tighten: "only less",
			allows:  func(node, asked uint64) bool { return asked <= node },
		}.key(),
		setting[int]{
			name: "max-connections", scope: ScopeWorkload, codec: number(1, 1<<20, ""), def: raw{"8192"},
			field:   func(c *Config) *int { return &c.MaxConnections },
			doc:     "How many connections hibernated passes on to it at the same time. The others wait in the backlog.",
			tighten: "only fewer",
			allows:  func(node, asked int) bool { return asked <= node },
		}.key(),
	}
}

// admissionKeys bound what all wakes of a node take.
func admissionKeys() []Key {
	return []Key{
		setting[int]{
			name: "max-wakes", scope: ScopeNode, def: raw{"0"},
			codec: number(0, 1024, "; 0 is one for each core, at least two"),
			field: func(c *Config) *int { return &c.MaxWakes },
			doc: "How many workloads are woken for connections at the same time; the others wait for their turn. Wakes that a " +
				"shim begins by itself (a packet, an exec, a signal) are counted, and never refused.",
		}.key(),
		setting[int]{
			name: "max-wake-queue", scope: ScopeNode, codec: number(1, 1<<20, ""), def: raw{"1024"},
			field: func(c *Config) *int { return &c.MaxWakeQueue },
			doc:   "How many workloads wait for their turn to be woken. Clients of those beyond are refused at once.",
		}.key(),
		setting[uint64]{
			name: "min-free-memory", scope: ScopeNode, codec: size, def: raw{"128MiB"},
			field: func(c *Config) *uint64 { return &c.MinFreeMemory },
			doc: "What must be left of the node's available memory once a workload is awake. With less, those that are idle " +
				"longest are put to sleep first; what then has no room waits for its turn.",
		}.key(),
		setting[int]{
			name: "max-node-connections", scope: ScopeNode, codec: number(1, 1<<20, ""), def: raw{"32768"},
			field: func(c *Config) *int { return &c.MaxNodeConnections },
			doc:   "How many connections hibernated passes on at the same time, to all workloads. The others wait in their backlogs.",
		}.key(),
		setting[Refusal]{
			name: "refuse-with", scope: ScopeNode, codec: choice(RefuseHTTP, RefuseReset), def: raw{"http"},
			field: func(c *Config) *Refusal { return &c.RefuseWith },
			doc: "The answer to a client whose workload doesn't wake. http: the status 503 with Retry-After to what is an HTTP/1 " +
				"request, a reset to all else; reset: a reset.",
		}.key(),
	}
}

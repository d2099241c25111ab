// Package harness makes private worlds for end-to-end tests, the demo and the benchmarks.
//
// A World is a node in miniature, made of real programs: containerd, CNI plugins, the daemon, the shims and sandboxes that
// they start, and a client on a network of its own. It has
//
//   - a directory of its own, for every root that can be configured;
//   - a mount namespace, where /run, /etc, /opt and /var/lib are private copies: `ctr run --cni` reads and writes fixed paths
//     there, and network namespaces are pinned there. All programs of a world share it, so they see each other's mounts;
//   - a network namespace, the node's: bridges, nft tables, rules and sysctls of the world are in it, never in the machine's;
//   - a network namespace for the client, routed by the node, so that a caller is not one of the node's own addresses;
//   - a cgroup that every program of the world is born in, so that none can escape the count or the end;
//   - a containerd namespace with a name of its own, so that two worlds' cgroups never meet.
//
// The test process itself stays outside. It reaches the world's files at World.Path, its programs by World.Command, and its
// network by World.Dial. A plain net.Dial does not get there.
//
// When Close is called, or the process that made the world dies, everything ends and is removed.
//
//	w := harness.New(t, harness.Options{Daemon: true})
//	w.Run(ctx, harness.Container{ID: "a", Image: "redis", CNI: true})
//	addr, _ := w.IP(ctx, "a")
//	conn, err := w.Dial(ctx, "tcp", net.JoinHostPort(addr, "6379"))
//	w.Hibernate(ctx, "a")
package harness

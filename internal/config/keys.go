package config

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	day   = 24 * time.Hour
	month = 30 * day
)

// Keys returns the table, in the order that documents and listings have. The caller must not change it.
func Keys() []Key { return table() }

var table = sync.OnceValue(func() []Key {
	return slices.Concat(nodeKeys(), runtimeKeys(), workloadKeys(), identityKeys(), holdKeys(), probeKeys(), hookKeys(), volumeKeys(), daemonKeys(), admissionKeys(), storeKeys(), peerKeys())
})

func nodeKeys() []Key {
	return []Key{
		setting[string]{
			name: "run-dir", scope: ScopeNode, codec: text("an absolute path", directory), def: raw{"/run/hibernate"},
			field: func(c *Config) *string { return &c.RunDir },
			doc:   "Sockets, records, inner network namespaces, runsc's root. Lost at a reboot, as it should be.",
		}.key(),
		setting[string]{
			name: "data-dir", scope: ScopeNode, codec: text("an absolute path", directory), def: raw{"/var/lib/hibernate"},
			field: func(c *Config) *string { return &c.DataDir },
			doc:   "Snapshots. They hold the memory of the workloads in clear: keep it on an encrypted disk.",
		}.key(),
	}
}

func runtimeKeys() []Key {
	return []Key{
		setting[string]{
			name: "runsc", scope: ScopeRuntime, codec: text("a name or an absolute path", program), def: raw{"runsc"},
			field: func(c *Config) *string { return &c.Runsc },
			doc: "The runsc program, with which workloads start. A name is looked for beside the shim, then in PATH. What sleeps is woken by the one " +
				"that has put it to sleep: see runsc-dir.",
		}.key(),
		setting[string]{
			name: "runsc-dir", scope: ScopeRuntime, codec: text("an absolute path, or one below the shim's directory", below), def: raw{"hibernate-bin/runsc"},
			field: func(c *Config) *string { return &c.RunscDir },
			doc: "Runscs that are kept side by side, so that an upgrade strands no sleeper: each as DIGEST/runsc, by the hex SHA-256 of its binary (or " +
				"VERSION/runsc), with its checkpointgofer beside it. A snapshot is restored by the very runsc that made it, and the workload stays with " +
				"that until it starts afresh. hibernatectl node tells which are still needed.",
		}.key(),
		setting[string]{
			name: "helper", scope: ScopeRuntime, codec: text("a name or an absolute path", program), def: raw{"hibernate-helper"},
			field: func(c *Config) *string { return &c.Helper },
			doc:   "The program that stands for a sleeping workload and finds its ports. Looked for as runsc is.",
		}.key(),
		setting[string]{
			name: "sidecar", scope: ScopeRuntime, codec: text("an absolute path, or one below the shim's directory", sidecar),
			def:   raw{"hibernate-bin/checkpointgofer"},
			field: func(c *Config) *string { return &c.Sidecar },
			doc:   "The program that serves a snapshot to a sandbox which already runs. It is built for one version of runsc.",
		}.key(),
		setting[LoadWay]{
			name: "load", scope: ScopeRuntime, codec: choice(LoadFlat, LoadPlain), def: raw{"flat"},
			field: func(c *Config) *LoadWay { return &c.Load },
			doc: "How a sleeper's memory comes back. flat: through the sidecar, while the sandbox runs; what is asked for first comes " +
				"first. plain: all of it before the sandbox runs, also taken where flat can't be; hibernatectl inspect tells why.",
		}.key(),
		setting[uint64]{
			name: "flat-from", scope: ScopeRuntime, codec: size, def: raw{"64MiB"},
			field: func(c *Config) *uint64 { return &c.FlatFrom },
			doc: "With load = flat, how large a node's own snapshot is at least that is loaded so: a smaller one is there as soon by itself as a sidecar " +
				"has started.",
		}.key(),
		setting[VerifyWhen]{
			name: "verify", scope: ScopeRuntime, codec: choice(VerifyWhile, VerifyBefore), def: raw{"while"},
			field: func(c *Config) *VerifyWhen { return &c.Verify },
			doc: "When a snapshot's checksums are compared, with load = flat. while: each chunk before its bytes reach the sandbox; " +
				"before: all of them before the restore, too. With load = plain it is always before.",
		}.key(),
		setting[StandbyPolicy]{
			name: "standby", scope: ScopeRuntime, codec: choice(StandbyOff, StandbyOften, StandbyOn), def: raw{"off"},
			field: func(c *Config) *StandbyPolicy { return &c.Standby },
			doc: "Whether a sleeper's next sandbox is booted while it sleeps, so that it wakes sooner. It costs some 12 MiB for each, " +
				"and is given back while less than a sixteenth of the node's memory is available. often: for workloads woken three times within an hour.",
		}.key(),
		setting[string]{
			name: "platform", scope: ScopeRuntime, codec: choice("systrap", "kvm", "ptrace"), def: raw{"systrap"},
			field: func(c *Config) *string { return &c.Platform },
			doc:   "gVisor's platform. A snapshot is restored on the platform that it was made on.",
		}.key(),
		setting[[]string]{
			name: "cpu-features", scope: ScopeRuntime, codec: features, def: raw{"auto"},
			field: func(c *Config) *[]string { return &c.CPUFeatures },
			doc: "The features of the CPU that a workload sees when it starts afresh, by the names that runsc cpu-features prints: those that all nodes of a pool " +
				"have, so that what sleeps on one is restored on any. A node that lacks one of them refuses to start workloads. auto: all of the node's. " +
				"A workload that is restored keeps those that it has. Not on arm64.",
		}.key(),
		setting[[]string]{
			name: "runsc-flags", scope: ScopeRuntime, codec: flags, def: raw{},
			field: func(c *Config) *[]string { return &c.RunscFlags },
			doc:   "Further global flags of runsc, in order, after those that hibernation needs. Those that would break a restore are refused.",
		}.key(),
		setting[time.Duration]{
			name: "runsc-timeout", scope: ScopeRuntime, codec: span(time.Second, time.Hour, ""), def: raw{"5m"},
			field: func(c *Config) *time.Duration { return &c.RunscTimeout },
			doc: "How long one call of runsc may take at most, a checkpoint of all memory included; then it is ended, and " +
				"what it was for is undone or tried again. Calls that should be quick are bounded more closely anyhow.",
		}.key(),
		setting[bool]{
			name: "allow-net-admin", scope: ScopeRuntime, codec: boolean, def: raw{"false"},
			field: func(c *Config) *bool { return &c.AllowNetAdmin },
			doc:   "Lets a workload with CAP_NET_ADMIN sleep, though what it changed in its network may be lost.",
		}.key(),
		setting[FastPath]{
			name: "fast-path", scope: ScopeRuntime, codec: choice(FastPathAuto, FastPathOff), def: raw{"auto"},
			field: func(c *Config) *FastPath { return &c.FastPath },
			doc: "Whether packets of an awake workload may pass the network stack of the pod's namespace. auto: with a kernel of " +
				"6.6 or later, while nobody else has rules or programs there; hibernatectl inspect tells a reason against it.",
		}.key(),
		setting[uint64]{
			name: "min-free-disk", scope: ScopeRuntime, codec: size, def: raw{"256MiB"},
			field: func(c *Config) *uint64 { return &c.MinFreeDisk },
			doc:   "What must stay free under data-dir beyond the checkpoint itself; with less, nothing hibernates.",
		}.key(),
	}
}

func workloadKeys() []Key {
	return append([]Key{
		setting[Mode]{
			name: "mode", scope: ScopeWorkload, codec: choice(ModeAuto, ModeObserve, ModeManual, ModeOff), def: raw{"auto"},
			field: func(c *Config) *Mode { return &c.Mode },
			doc: "auto sleeps when idle; observe only says what it would do; manual sleeps when asked to; " +
				"off runs plain runsc, without the inner link, and never sleeps.",
			tighten: "only towards off: auto, then manual or observe, then off",
			allows:  func(node, asked Mode) bool { return freedom(asked) <= freedom(node) },
		}.key(),
		setting[[]uint16]{
			name: "ports", scope: ScopeWorkload, codec: ports, def: raw{"auto"},
			field: func(c *Config) *[]uint16 { return &c.Ports },
			doc: "TCP ports whose new connections are held for the sleeping workload. auto finds the listening ones at " +
				"each hibernation. Packets to any other port wake too, unless the port is closed.",
		}.key(),
		setting[RestorePolicy]{
			name: "on-restore-failure", scope: ScopeWorkload, codec: choice(RestoreCold, RestoreBlock), def: raw{"cold"},
			field: func(c *Config) *RestorePolicy { return &c.OnRestoreFailure },
			doc: "When no snapshot can be restored: cold starts from the image, block waits for a person. " +
				"The snapshot is kept and told either way.",
		}.key(),
		setting[bool]{
			name: "restore-older", scope: ScopeWorkload, codec: boolean, def: raw{"false"},
			field: func(c *Config) *bool { return &c.RestoreOlder },
			doc: "When the newest snapshot can be restored neither from the node nor from the store: whether an older one of the store is, before " +
				"on-restore-failure applies. What came after it is lost to the workload then; it is kept, and told. " +
				"hibernatectl wake --from does the same once, by request.",
		}.key(),
		setting[StopPolicy]{
			name: "on-stop", scope: ScopeWorkload, codec: choice(StopSignal, StopExit, StopHibernate), def: raw{"signal"},
			field: func(c *Config) *StopPolicy { return &c.OnStop },
			doc: "SIGTERM, SIGINT or SIGQUIT: signal delivers it, and wakes a sleeper for that; exit delivers it, and ends a sleeper with status 143 and no wake; " +
				"hibernate puts the workload to sleep and ends the task with status 0: the snapshot stays, and the next container of its identity, or id, " +
				"goes on from it. What can't be put to sleep gets the signal, and hibernatectl inspect says why.",
		}.key(),
		setting[int]{
			name: "keep-snapshots", scope: ScopeWorkload, codec: number(1, 100, ""), def: raw{"3"},
			field:   func(c *Config) *int { return &c.KeepSnapshots },
			doc:     "How many snapshots are kept in the store, the newest ones. On the node there is one.",
			tighten: "only fewer",
			allows:  func(node, asked int) bool { return asked <= node },
		}.key(),
		setting[time.Duration]{
			name: "delete-after", scope: ScopeWorkload, codec: span(time.Second, 120*month, "never"), def: raw{"0s"},
			field: func(c *Config) *time.Duration { return &c.DeleteAfter },
			doc: "How long nobody may have woken a sleeper before hibernated ends it, with status 137, and deletes its snapshots, here and in the " +
				"store; and how long snapshots of a workload that has left the node are kept in the store. What is pinned is kept. hibernatectl ls tells it before.",
			tighten: "only sooner",
			allows:  func(node, asked time.Duration) bool { return node == 0 || (asked != 0 && asked <= node) },
		}.key(),
	}, durationKeys()...)
}

func durationKeys() []Key {
	return []Key{
		setting[time.Duration]{
			name: "idle-timeout", scope: ScopeWorkload, codec: span(100*time.Millisecond, month, ""), def: raw{"5m"},
			field: func(c *Config) *time.Duration { return &c.IdleTimeout },
			doc:   "How long a workload must be without activity before it sleeps.",
		}.key(),
		setting[time.Duration]{
			name: "min-awake", scope: ScopeWorkload, codec: span(0, day, ""), def: raw{"1m"},
			field:   func(c *Config) *time.Duration { return &c.MinAwake },
			doc:     "How long a workload stays awake at least after a start or a wake: the node's guard against thrashing.",
			tighten: "only longer",
			allows:  func(node, asked time.Duration) bool { return asked >= node },
		}.key(),
		setting[time.Duration]{
			name: "wake-timeout", scope: ScopeWorkload, codec: span(time.Second, time.Hour, ""), def: raw{"30s"},
			field:   func(c *Config) *time.Duration { return &c.WakeTimeout },
			doc:     "How long a wake may take, waiting for a store included; then on-restore-failure applies. Memory that comes from a store after the wake waits as long for it.",
			tighten: "only shorter",
			allows:  func(node, asked time.Duration) bool { return asked <= node },
		}.key(),
		setting[time.Duration]{
			name: "exec-idle-timeout", scope: ScopeWorkload, def: raw{"30m"},
			codec: span(time.Second, month, "an exec counts however silent it is"),
			field: func(c *Config) *time.Duration { return &c.ExecIdleTimeout },
			doc: "After that long without input or output, an exec no longer keeps its workload awake. It ends, with " +
				"status 137, when that goes to sleep.",
			tighten: "only shorter",
			allows: func(node, asked time.Duration) bool {
				return node == 0 || (asked != 0 && asked <= node)
			},
		}.key(),
	}
}

func daemonKeys() []Key {
	return []Key{
		setting[string]{
			name: "metrics-address", scope: ScopeNode, def: raw{"127.0.0.1:9476"},
			codec: text("host:port, or empty for none", listenAddress),
			field: func(c *Config) *string { return &c.MetricsAddress },
			doc:   "Where hibernated serves /metrics and /healthz.",
		}.key(),
		setting[slog.Level]{
			name: "log-level", scope: ScopeNode, codec: logLevel, def: raw{"info"},
			field: func(c *Config) *slog.Level { return &c.LogLevel },
			doc:   "The least severity that hibernated logs. The shim's follows containerd's.",
		}.key(),
		setting[LogFormat]{
			name: "log-format", scope: ScopeNode, codec: choice(LogText, LogJSON), def: raw{"text"},
			field: func(c *Config) *LogFormat { return &c.LogFormat },
			doc:   "How hibernated writes its log, to standard error.",
		}.key(),
		setting[int]{
			name: "max-hibernations", scope: ScopeNode, def: raw{"0"},
			codec: number(0, 1024, "; 0 is one for each core"),
			field: func(c *Config) *int { return &c.MaxHibernations },
			doc:   "How many workloads hibernated puts to sleep at the same time; the others wait for their turn.",
		}.key(),
		setting[time.Duration]{
			name: "poll-interval", scope: ScopeNode, codec: span(100*time.Millisecond, time.Minute, ""), def: raw{"1s"},
			field: func(c *Config) *time.Duration { return &c.PollInterval },
			doc: "How often hibernated asks a shim for activity at most: a quarter of a short idle timeout, and " +
				"up to 5 s where the timeout is long.",
		}.key(),
		setting[time.Duration]{
			name: "idle-timeout-max", scope: ScopeNode, codec: span(time.Second, month, ""), def: raw{"30m"},
			field: func(c *Config) *time.Duration { return &c.IdleTimeoutMax },
			doc:   "Repeated quick wakes double a workload's idle timeout, up to this.",
		}.key(),
		setting[int]{
			name: "cpu-threshold", scope: ScopeNode, codec: number(0, 100, " percent of one core"), def: raw{"5"},
			field: func(c *Config) *int { return &c.CPUThreshold },
			doc:   "CPU use above this, over cpu-window, counts as activity.",
		}.key(),
		setting[time.Duration]{
			name: "cpu-window", scope: ScopeNode, codec: span(time.Second, time.Hour, ""), def: raw{"10s"},
			field: func(c *Config) *time.Duration { return &c.CPUWindow },
			doc:   "The time over which CPU use is averaged.",
		}.key(),
		setting[time.Duration]{
			name: "orphan-hold", scope: ScopeNode, codec: span(time.Second, 10*time.Minute, "they are closed at once"), def: raw{"15s"},
			field: func(c *Config) *time.Duration { return &c.OrphanHold },
			doc: "How long hibernated holds the connections of a shim that died, for its container to be started again: longer " +
				"than engines take for that, shorter than clients wait. Not where the pod's network goes with the container.",
		}.key(),
		setting[time.Duration]{
			name: "drain-timeout", scope: ScopeNode, codec: span(time.Second, 12*month, "they are reset after ten seconds"), def: raw{"24h"},
			field: func(c *Config) *time.Duration { return &c.DrainTimeout },
			doc: "How long connections that hibernated passes on may outlive it when it ends in order, as for an upgrade. A process " +
				"of its own carries them on.",
		}.key(),
		setting[time.Duration]{
			name: "collect-after", scope: ScopeNode, codec: span(time.Minute, 12*month, "never"), def: raw{"24h"},
			field: func(c *Config) *time.Duration { return &c.CollectAfter },
			doc: "How long containerd must have said that a container is gone before hibernated removes the snapshot that is " +
				"left of it. Where containerd can't be asked, nothing is removed.",
		}.key(),
	}
}

// freedom orders the modes by what they let a workload do with the node.
func freedom(m Mode) int {
	return map[Mode]int{ModeOff: 0, ModeObserve: 1, ModeManual: 1, ModeAuto: 2}[m]
}

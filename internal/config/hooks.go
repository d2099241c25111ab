package config

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// HookPolicy says what follows when a hook of the workload's fails.
type HookPolicy string

// The hook policies.
const (
	HookAbort  HookPolicy = "abort"  // the hibernation is undone, the wake blocked
	HookIgnore HookPolicy = "ignore" // it is told, and no more
)

// VolumePolicy says what follows when files outside the snapshot have changed while the workload slept.
type VolumePolicy string

// The volume policies.
const (
	VolumeTell   VolumePolicy = "tell"   // the wake's record names the mount
	VolumeRefuse VolumePolicy = "refuse" // the snapshot is not restored
)

// hookKeys are about programs of the workload's own that run at its sleep and its wake.
func hookKeys() []Key {
	return []Key{
		setting[[]string]{
			name: "hook-before-sleep", scope: ScopeWorkload, codec: words, def: raw{""},
			field: func(c *Config) *[]string { return &c.HookBeforeSleep },
			doc: "A program that runs in the container before each hibernation, while the workload still has its network: to give back leases, " +
				"to flush. What it and the workload begin on the network meanwhile is no use; what others begin undoes the hibernation.",
		}.key(),
		setting[[]string]{
			name: "hook-after-wake", scope: ScopeWorkload, codec: words, def: raw{""},
			field: func(c *Config) *[]string { return &c.HookAfterWake },
			doc: "A program that runs in the container after each restore, before the network is there and anybody reaches it: to reseed, to " +
				"drop what is stale. It runs, too, with the network, when a hibernation is undone whose hook-before-sleep has run.",
		}.key(),
		setting[time.Duration]{
			name: "hook-timeout", scope: ScopeWorkload, codec: span(100*time.Millisecond, 5*time.Minute, ""), def: raw{"10s"},
			field: func(c *Config) *time.Duration { return &c.HookTimeout },
			doc: "How long a hook may take; then it has failed, and it and all that it has started are killed. What it leaves running when it " +
				"ends by itself is killed, too. hook-after-wake is a part of the wake, and so bounded by wake-timeout as well.",
		}.key(),
		setting[HookPolicy]{
			name: "hook-failure", scope: ScopeWorkload, codec: choice(HookAbort, HookIgnore), def: raw{"abort"},
			field: func(c *Config) *HookPolicy { return &c.HookFailure },
			doc: "When a hook ends with another status than 0, can't be run, or takes too long. abort: before a sleep, the workload stays awake; " +
				"after a wake, it is blocked, and its snapshot is kept as it was. ignore: it goes on. It is told either way, with the end of what the hook said.",
		}.key(),
	}
}

// volumeKeys are about files that the workload maps and its snapshot hasn't got.
func volumeKeys() []Key {
	return []Key{
		setting[VolumePolicy]{
			name: "on-volume-change", scope: ScopeWorkload, codec: choice(VolumeTell, VolumeRefuse), def: raw{"tell"},
			field: func(c *Config) *VolumePolicy { return &c.OnVolumeChange },
			doc: "When files of a mount of the host's were changed while the workload slept. tell: it is restored, and the wake's record names the " +
				"mount; refuse: its snapshot is not restored, and on-restore-failure applies.",
		}.key(),
		setting[bool]{
			name: "allow-stale-volumes", scope: ScopeWorkload, codec: boolean, def: raw{"false"},
			field: func(c *Config) *bool { return &c.AllowStaleVolumes },
			doc: "Lets a snapshot be restored over a writable mount of the host's that has gone on without it: an older one, one of another node, " +
				"or of another container. A database whose memory is older than its files destroys them: only where the program can bear that.",
		}.key(),
	}
}

// words is a command line, as a shell reads one without any expansion.
var words = codec[[]string]{
	kind: "a command line, with quotes as in a shell, which no shell runs; empty for none",
	parse: func(r raw) ([]string, error) {
		s, err := one(r)
		if err != nil {
			return nil, err
		}
		return split(s)
	},
	format: func(l []string) raw { return raw{join(l)} },
}

// split takes a command line apart. Within ' all stands for itself; within " and outside a backslash takes the next character's meaning away.
func split(line string) (list []string, err error) {
	var word strings.Builder
	var quote rune
	begun, escaped := false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			begun, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			begun, quote = true, c
		case c == ' ' || c == '\t' || c == '\n':
			if begun {
				list = append(list, word.String())
				word.Reset()
				begun = false
			}
		default:
			begun = true
			word.WriteRune(c)
		}
	}
	switch {
	case quote != 0:
		return nil, errors.New("a quote is not closed")
	case escaped:
		return nil, errors.New("it ends in a backslash")
	case begun:
		list = append(list, word.String())
	}
	if len(list) > 0 && list[0] == "" {
		return nil, errors.New("the program has no name")
	}
	if slices.ContainsFunc(list, func(w string) bool { return strings.ContainsRune(w, 0) }) {
		return nil, errors.New("it has a zero byte")
	}
	return list, nil
}

// join is what split takes apart.
func join(list []string) string {
	quoted := make([]string, 0, len(list))
	for _, w := range list {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted = append(quoted, w)
	}
	return strings.Join(quoted, " ")
}

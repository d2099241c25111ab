package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// RestoreWhat says what a container with an earlier snapshot begins with.
type RestoreWhat string

// What may be restored.
const (
	RestoreAuto  RestoreWhat = "auto"  // the newest snapshot of its own
	RestoreNever RestoreWhat = "never" // none: it begins afresh
)

// Template is another workload that a first start begins from; ok is false where it begins from none. sequence 0: its newest snapshot.
func (r RestoreWhat) Template() (identity string, sequence uint64, ok bool) {
	if r == RestoreAuto || r == RestoreNever || r == "" {
		return "", 0, false
	}
	identity, number, _ := strings.Cut(string(r), "@")
	sequence, _ = strconv.ParseUint(number, 10, 64) // 0 without one
	return identity, sequence, true
}

// identityKeys are those that say which workload a container is.
func identityKeys() []Key {
	return []Key{
		setting[string]{
			name: "identity", scope: ScopeWorkload, single: true, def: raw{""},
			codec: text("a letter or digit, and then up to 99 of letters, digits and ._-; or empty for none", identity),
			field: func(c *Config) *string { return &c.Identity },
			doc: "The workload's name across containers and nodes: whichever container has it goes on from where the last one slept. One at a time runs. It counts " +
				"within containerd's namespace, and the pod's. It names one workload, so it stands in an annotation or in runtime options, not in the file.",
		}.key(),
		setting[RestoreWhat]{
			name: "restore", scope: ScopeWorkload, def: raw{"auto"}, codec: restoreWhat,
			field: func(c *Config) *RestoreWhat { return &c.Restore },
			doc: "What a container that is started begins with. auto: the snapshot that the last one of its identity, or of its id, went to sleep with; " +
				"never: nothing, and such a snapshot is set aside; IDENTITY or IDENTITY@SEQUENCE: where it has none of its own, that of a workload on this node which is a " +
				"template, within the same namespaces and with the same specification.",
		}.key(),
		setting[bool]{
			name: "template", scope: ScopeWorkload, codec: boolean, def: raw{"false"}, single: true,
			field: func(c *Config) *bool { return &c.Template },
			doc: "Lets other workloads begin from this one's snapshots (restore = IDENTITY), within containerd's namespace and the pod's: they have its memory, with " +
				"what is secret in it.",
		}.key(),
		setting[int]{
			name: "pool", scope: ScopeWorkload, codec: number(0, 100, ""), def: raw{"0"}, single: true,
			field: func(c *Config) *int { return &c.Pool },
			doc: "How many children of a template stand ready to be claimed (hibernatectl pool claim), each with a booted sandbox. For containers of ctr or containerd's " +
				"client, with a network by CNI or none. hibernated makes them while the node has 512 MiB of memory left.",
		}.key(),
		setting[time.Duration]{
			name: "fork-freeze-max", scope: ScopeWorkload, codec: span(10*time.Millisecond, 10*time.Minute, ""), def: raw{"1.5s"},
			field: func(c *Config) *time.Duration { return &c.ForkFreezeMax },
			doc: "How long hibernatectl fork may freeze a workload that is awake, judged by its memory beforehand: what would take longer is refused. A sleeper " +
				"isn't frozen by it.",
			tighten: "only shorter",
			allows:  func(node, asked time.Duration) bool { return asked <= node },
		}.key(),
	}
}

var identityPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// CheckIdentity says what is wrong with a workload's name.
func CheckIdentity(name string) error {
	if name == "" {
		return errors.New("an identity has a name")
	}
	if err := identity(name); err != nil {
		return fmt.Errorf("identity %q: %w", name, err)
	}
	return nil
}

func identity(s string) error {
	if s != "" && !identityPattern.MatchString(s) {
		return errors.New("it has other characters, or more than 100")
	}
	return nil
}

var restoreFrom = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[0-9]+)?$`)

var restoreWhat = codec[RestoreWhat]{
	kind: "auto, never, IDENTITY, IDENTITY@SEQUENCE",
	parse: func(r raw) (RestoreWhat, error) {
		s, err := one(r)
		switch {
		case err != nil:
			return "", err
		case s == string(RestoreAuto), s == string(RestoreNever):
			return RestoreWhat(s), nil
		case restoreFrom.MatchString(s):
			if _, number, ok := strings.Cut(s, "@"); ok {
				if n, err := strconv.ParseUint(number, 10, 64); err != nil || n == 0 {
					return "", errors.New("snapshots are counted from 1")
				}
			}
			return RestoreWhat(s), nil
		}
		return "", errors.New("not one of the names allowed")
	},
	format: func(v RestoreWhat) raw { return raw{string(v)} },
}

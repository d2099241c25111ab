package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// storeKeys are those of the durable tier, which is hibernated's alone.
func storeKeys() []Key {
	return []Key{
		setting[string]{
			name: "store", scope: ScopeNode, def: raw{""},
			codec: text("a URL s3://bucket/prefix?endpoint=… or file:///directory, or empty for none", storeURL),
			field: func(c *Config) *string { return &c.Store },
			doc: "Where hibernated keeps copies of snapshots that outlive the node: a bucket, or a directory that other machines reach. " +
				"docs/OPERATIONS.md says what a URL may have.",
		}.key(),
		setting[string]{
			name: "store-key-file", scope: ScopeNode, def: raw{""}, codec: text("an absolute path, or empty for none", absoluteOrNone),
			field: func(c *Config) *string { return &c.StoreKeyFile },
			doc: "The key of all that is in the store: 32 random bytes, or their base64, readable by root alone (0600). Who loses it loses " +
				"every snapshot there: keep a copy elsewhere.",
		}.key(),
		setting[[]string]{
			name: "store-key-command", scope: ScopeNode, def: raw{}, codec: commandLine,
			field: func(c *Config) *[]string { return &c.StoreKeyCommand },
			doc: "Instead of store-key-file, a program that asks a KMS: it is given wrap or unwrap as its last argument and base64 on " +
				"standard input, and answers in base64 within 30s. Its file's name tells its key from others: don't change it.",
		}.key(),
		setting[[]string]{
			name: "store-older-keys", scope: ScopeNode, codec: olderKeys, def: raw{},
			field: func(c *Config) *[]string { return &c.StoreOlderKeys },
			doc: "Keys that snapshots in the store may still be wrapped with, beside store-key-file or store-key-command: to read them, and for " +
				"hibernatectl snapshots rewrap, after which they are no longer needed. Each a key file's path, command: and a program's path, or plaintext.",
		}.key(),
		setting[bool]{
			name: "store-insecure-plaintext", scope: ScopeNode, codec: boolean, def: raw{"false"},
			field: func(c *Config) *bool { return &c.StoreInsecurePlaintext },
			doc:   "Keeps snapshots in a store without a key. Who can read the store then reads the memory of all workloads.",
		}.key(),
		setting[string]{
			name: "store-credentials", scope: ScopeNode, def: raw{""},
			codec: text("env, aws, an absolute path, or empty for what the URL says", credentials),
			field: func(c *Config) *string { return &c.StoreCredentials },
			doc: "Who hibernated is to an S3 store. env: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a path: a file as AWS's tools have " +
				"it, read again when it changes; aws: both, and then the machine's role. The URL's credentials= without it, and aws without either.",
		}.key(),
		setting[string]{
			name: "store-ca", scope: ScopeNode, def: raw{""}, codec: text("an absolute path, or empty for the system's", absoluteOrNone),
			field: func(c *Config) *string { return &c.StoreCA },
			doc:   "The certificates that an S3 store's own may be signed by.",
		}.key(),
		setting[uint64]{
			name: "upload-rate", scope: ScopeNode, codec: size, def: raw{"0"},
			field: func(c *Config) *uint64 { return &c.UploadRate },
			doc:   "How much hibernated sends to the store in a second, on average; 0 for as much as it takes.",
		}.key(),
		setting[uint64]{
			name: "store-quota", scope: ScopeNode, codec: size, def: raw{"0"},
			field: func(c *Config) *uint64 { return &c.StoreQuota },
			doc: "How much the snapshots of one workload may take in the store; 0 for no bound. For a new one that would take more, the " +
				"oldest that are not pinned go first, but for the newest; when that isn't enough it is not uploaded, and hibernatectl ls says so.",
		}.key(),
		setting[string]{
			name: "node-name", scope: ScopeNode, def: raw{""}, codec: text("letters, digits and ._-, or empty for the host's name", nodeName),
			field: func(c *Config) *string { return &c.NodeName },
			doc:   "This node's name in the store, by which it claims workloads: no two nodes that share a store may have the same, nor may it change.",
		}.key(),
		setting[Fencing]{
			name: "fencing", scope: ScopeNode, codec: choice(FencingStrict, FencingRelaxed), def: raw{"strict"},
			field: func(c *Config) *Fencing { return &c.Fencing },
			doc: "What a store that is away means for workloads with an identity. strict: they are put to sleep before another node may take them over. relaxed: " +
				"they go on, and wake where they slept; for where something else sees to it that one copy runs, as Kubernetes does for a StatefulSet.",
		}.key(),
		setting[time.Duration]{
			name: "takeover-after", scope: ScopeNode, codec: span(3*time.Second, time.Hour, ""), def: raw{"1m"},
			field: func(c *Config) *time.Duration { return &c.TakeoverAfter },
			doc: "How long a node must have told nothing, and a sixth of it, before others take over its workloads with an identity. It puts them to sleep itself when " +
				"half of it is over. The same on all nodes that share a store.",
		}.key(),
	}
}

func storeURL(s string) error {
	if s != "" && !strings.HasPrefix(s, "s3://") && !strings.HasPrefix(s, "file:///") {
		return errors.New("it begins neither with s3:// nor with file:///")
	}
	return nil
}

func absoluteOrNone(s string) error {
	if s != "" && !filepath.IsAbs(s) {
		return errors.New("not an absolute path")
	}
	return nil
}

func credentials(s string) error {
	if s == "env" || s == "aws" {
		return nil
	}
	return absoluteOrNone(s)
}

// commandLine is a program and its arguments, each for itself: no shell reads them.
var commandLine = codec[[]string]{
	kind: `a list that begins with an absolute path, such as ["/usr/local/bin/kms-wrap", "--key", "hibernate"]`,
	parse: func(r raw) ([]string, error) {
		if len(r) > 0 && !filepath.IsAbs(r[0]) {
			return nil, errors.New("the program is not named by an absolute path")
		}
		return slices.Clone([]string(r)), nil
	},
	format: func(l []string) raw { return slices.Clone(raw(l)) },
}

func nodeName(s string) error {
	if s != "" && !nodeNamePattern.MatchString(s) {
		return errors.New("it has other characters, or more than 253")
	}
	return nil
}

var nodeNamePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)

// The words of store-older-keys that are no path.
const (
	PlaintextKey     = "plaintext"
	CommandKeyPrefix = "command:"
)

var olderKeys = codec[[]string]{
	kind: `a list of absolute paths, each alone or after command:, and the word plaintext`,
	parse: func(r raw) ([]string, error) {
		for _, s := range r {
			if s != PlaintextKey && !filepath.IsAbs(strings.TrimPrefix(s, CommandKeyPrefix)) {
				return nil, fmt.Errorf("%q is not an absolute path", s)
			}
		}
		return slices.Clone([]string(r)), nil
	},
	format: func(l []string) raw { return slices.Clone(raw(l)) },
}

// CheckStore says which keys of the durable tier contradict each other, and what to do.
func (c *Config) CheckStore() error {
	s3 := strings.HasPrefix(c.Store, "s3://")
	keyed := c.StoreKeyFile != "" || len(c.StoreKeyCommand) > 0
	var errs []error
	wrong := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if c.Store == "" {
		for _, k := range []struct {
			name string
			set  bool
		}{
			{"store-key-file", c.StoreKeyFile != ""}, {"store-key-command", len(c.StoreKeyCommand) > 0},
			{"store-insecure-plaintext", c.StoreInsecurePlaintext}, {"store-credentials", c.StoreCredentials != ""}, {"store-ca", c.StoreCA != ""},
			{"store-older-keys", len(c.StoreOlderKeys) > 0}, {"store-quota", c.StoreQuota != 0},
			{"peer-address", c.PeerAddress != ""}, {"peer-advertise", c.PeerAdvertise != ""},
		} {
			if k.set {
				wrong(k.name, "there is no store: set store to its URL, or take this key out")
			}
		}
		return errors.Join(errs...)
	}
	if c.StoreKeyFile != "" && len(c.StoreKeyCommand) > 0 {
		wrong("store-key-file", "store-key-command is set, too: take out the one that the store's snapshots are not wrapped with")
	}
	if c.PeerAdvertise != "" && c.PeerAddress == "" {
		wrong("peer-advertise", "there is no peer-address: set that, or take this key out")
	}
	if c.StoreInsecurePlaintext && keyed {
		wrong("store-insecure-plaintext", "a key is set, too: take one of them out")
	}
	if slices.Contains(c.StoreOlderKeys, PlaintextKey) && !keyed {
		wrong("store-older-keys", "plaintext stands there, and there is no other key: set store-key-file, or take it out")
	}
	if s3 && !keyed && !c.StoreInsecurePlaintext {
		wrong("store-key-file", "an S3 store needs a key, or whoever reads the bucket reads all workloads' memory: make one with "+
			"(umask 077; head -c 32 /dev/urandom | base64 > /etc/hibernate/store.key), keep a copy elsewhere, and name it here; or set "+
			"store-key-command; or store-insecure-plaintext = true, where the bucket is trusted as the node's disk is")
	}
	if !s3 && c.StoreCredentials != "" {
		wrong("store-credentials", "a directory takes none: take this key out")
	}
	if !s3 && c.StoreCA != "" {
		wrong("store-ca", "a directory has no certificate: take this key out")
	}
	return errors.Join(errs...)
}

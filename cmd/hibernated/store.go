package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
)

// keyTimeout bounds one run of store-key-command.
const keyTimeout = 30 * time.Second

// storeOptions are those of the durable tier, nil where none is configured. What a person must mend in the configuration is an error; a
// store that isn't there yet is none.
func storeOptions(cfg *config.Config, log *slog.Logger) (*daemon.StoreOptions, error) {
	if err := cfg.CheckStore(); err != nil {
		return nil, err
	}
	if cfg.Store == "" {
		return nil, nil
	}
	address, err := storeAddress(cfg)
	if err != nil {
		return nil, err
	}
	key, err := storeKey(cfg, log)
	if err != nil {
		return nil, err
	}
	older, err := olderKeys(cfg, key)
	if err != nil {
		return nil, err
	}
	warnOfOpenCredentials(cfg, log)
	name, err := nodeName(cfg)
	if err != nil {
		return nil, err
	}
	o := &daemon.StoreOptions{
		URL: cfg.Store, Keys: durable.Keyring{Current: key, Older: older}, Node: name, Keep: cfg.KeepSnapshots, Rate: int64(cfg.UploadRate),
		Quota: int64(cfg.StoreQuota), Relaxed: cfg.Fencing == config.FencingRelaxed, TakeOver: cfg.TakeoverAfter,
		PeerAddress: cfg.PeerAddress, PeerAdvertise: cfg.PeerAdvertise,
		Open: func() (store.Store, error) { return open.URL(address) },
	}
	if strings.HasPrefix(address, "s3://") { // nothing is sent: an error is one of the URL
		first, err := o.Open()
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		_ = first.Close()
	}
	return o, nil
}

// warnOfOpenCredentials tells of a file with credentials that others than its owner can read. AWS's own tools take such a file, so it is no error.
func warnOfOpenCredentials(cfg *config.Config, log *slog.Logger) {
	info, err := os.Stat(cfg.StoreCredentials)
	if filepath.IsAbs(cfg.StoreCredentials) && err == nil && info.Mode().Perm()&0o077 != 0 {
		log.Warn("the store's credentials can be read by others: chmod 600 the file, and change them if somebody has", "file", cfg.StoreCredentials,
			"mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	}
}

// nodeName is this node's in the store.
func nodeName(cfg *config.Config) (string, error) {
	if cfg.NodeName != "" {
		return cfg.NodeName, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("node-name: the host's name is not known, and this node claims workloads by it: set node-name: %w", err)
	}
	return name, nil
}

// olderKeys are those that snapshots may still be wrapped with.
func olderKeys(cfg *config.Config, current durable.KeyWrapper) (all []durable.KeyWrapper, err error) {
	for _, s := range cfg.StoreOlderKeys {
		var key durable.KeyWrapper
		path, command := strings.CutPrefix(s, config.CommandKeyPrefix)
		switch {
		case s == config.PlaintextKey:
			key = durable.InsecurePlaintext()
		case command:
			key, err = durable.KeyCommand(filepath.Base(path), []string{path}, keyTimeout)
		default:
			key, err = durable.KeyFile(path)
		}
		if err != nil {
			return nil, fmt.Errorf("store-older-keys: %w", err)
		}
		if key.ID() == current.ID() {
			return nil, fmt.Errorf("store-older-keys: %s is the current key (%s), too: name the key of before, or take it out", s, key.ID())
		}
		all = append(all, key)
	}
	return all, nil
}

// storeAddress is the URL with what other keys add to it.
func storeAddress(cfg *config.Config) (string, error) {
	u, err := url.Parse(cfg.Store)
	if err != nil {
		return cfg.Store, fmt.Errorf("store: it can't be read as a URL: escape what isn't a letter or digit")
	}
	query := u.Query()
	for _, k := range []struct{ key, param, value string }{
		{"store-credentials", "credentials", cfg.StoreCredentials}, {"store-ca", "ca", cfg.StoreCA},
	} {
		switch {
		case k.value == "":
		case query.Has(k.param):
			return "", fmt.Errorf("%s: the URL of store has %s=, too: take out one of them", k.key, k.param)
		default:
			query.Set(k.param, k.value)
			u.RawQuery = query.Encode()
		}
	}
	return u.String(), nil
}

func storeKey(cfg *config.Config, log *slog.Logger) (durable.KeyWrapper, error) {
	switch {
	case cfg.StoreKeyFile != "":
		key, err := durable.KeyFile(cfg.StoreKeyFile)
		if err != nil {
			return nil, fmt.Errorf("store-key-file: %w", err)
		}
		log.Info("snapshots in the store are encrypted: who loses this key loses all of them; keep a copy elsewhere", "key", key.ID(), "file", cfg.StoreKeyFile)
		return key, nil
	case len(cfg.StoreKeyCommand) > 0:
		key, err := durable.KeyCommand(filepath.Base(cfg.StoreKeyCommand[0]), cfg.StoreKeyCommand, keyTimeout)
		if err != nil {
			return nil, fmt.Errorf("store-key-command: %w", err)
		}
		return key, nil
	}
	log.Warn("snapshots in the store are not encrypted: who can read it reads the memory of all workloads", "store", cfg.Store)
	return durable.InsecurePlaintext(), nil
}

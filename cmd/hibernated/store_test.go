package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

// TestStoreOptions: what is wrong with the store's keys ends the start with an error that names the key and what to do; what is only not
// there yet doesn't.
func TestStoreOptions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", strings.Repeat("k", 32), 0o600)
	other := write("other", strings.Repeat("o", 32), 0o600)
	open := write("open", strings.Repeat("k", 32), 0o644)
	short := write("short", "too short", 0o600)
	const s3 = "s3://bucket/prefix?endpoint=http://127.0.0.1:1"
	for _, tc := range []struct {
		text string
		want []string // in the error; none: no error
	}{
		{"", nil},
		{`store = "` + s3 + `"`, []string{"store-key-file", "needs a key", "/dev/urandom"}},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + good + `"`, nil},
		{`store = "` + s3 + `"` + "\nstore-insecure-plaintext = true", nil},
		{`store = "` + s3 + `"` + "\nstore-key-command = [\"/bin/kms\"]", nil},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + dir + `/none"`, []string{"store-key-file", "is not there"}},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + open + `"`, []string{"store-key-file", "chmod 600"}},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + short + `"`, []string{"store-key-file", "head -c 32 /dev/urandom"}},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + good + "\"\nstore-older-keys = [\"" + other + "\", \"command:/bin/kms\", \"plaintext\"]", nil},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + good + "\"\nstore-older-keys = [\"" + dir + "/none\"]", []string{"store-older-keys", "is not there"}},
		{`store = "` + s3 + `"` + "\nstore-key-file = \"" + good + "\"\nstore-older-keys = [\"" + good + "\"]", []string{"store-older-keys", "is the current key"}},
		{`store = "s3://bucket?endpoint=ftp://x"` + "\nstore-key-file = \"" + good + `"`, []string{"store: ", "endpoint="}},
		{`store = "s3://bucket?frob=1"` + "\nstore-key-file = \"" + good + `"`, []string{"store: ", `no key "frob"`}},
		{`store = "` + s3 + `&credentials=env"` + "\nstore-credentials = \"aws\"\nstore-key-file = \"" + good + `"`, []string{"store-credentials", "credentials=, too"}},
		{`store = "` + s3 + `"` + "\nstore-credentials = \"" + good + "\"\nstore-key-file = \"" + good + `"`, nil},
		{`store = "s3://bucket?endpoint=https://x"` + "\nstore-ca = \"" + dir + "/none\"\nstore-key-file = \"" + good + `"`, []string{"store: ", "ca="}},
		{`store = "file://` + dir + `/not-mounted"`, nil},
	} {
		cfg, err := config.Load(config.Input{File: write("config.toml", tc.text, 0o600)})
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		var out bytes.Buffer
		o, err := storeOptions(cfg, slog.New(slog.NewTextHandler(&out, nil)))
		if (err == nil) != (len(tc.want) == 0) {
			t.Errorf("%s: %v", tc.text, err)
		}
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v doesn't say %q", tc.text, err, want)
			}
		}
		if err == nil && (o == nil) != (tc.text == "") {
			t.Errorf("%s: options %+v", tc.text, o)
		}
		if o != nil && len(o.Keys.Older) != len(cfg.StoreOlderKeys) {
			t.Errorf("%s: older keys %d", tc.text, len(o.Keys.Older))
		}
		if o != nil && o.Keys.Current.ID() == "plaintext" && !strings.Contains(out.String(), "not encrypted") {
			t.Errorf("%s: nobody is told that it is in clear: %s", tc.text, &out)
		}
	}
}

// TestNodeName: the configured one, else the host's.
func TestNodeName(t *testing.T) {
	cfg := config.Default()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := nodeName(cfg); err != nil || got != host {
		t.Errorf("%q, %v", got, err)
	}
	cfg.NodeName = "rack-7"
	if got, err := nodeName(cfg); err != nil || got != "rack-7" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestStoreAddress: what other keys say comes into the URL.
func TestStoreAddress(t *testing.T) {
	cfg := config.Default()
	cfg.Store, cfg.StoreCredentials, cfg.StoreCA = "s3://b/p?region=x", "/etc/keys", "/etc/ca.pem"
	if got, err := storeAddress(cfg); err != nil || got != "s3://b/p?ca=%2Fetc%2Fca.pem&credentials=%2Fetc%2Fkeys&region=x" {
		t.Errorf("%s, %v", got, err)
	}
	cfg.StoreCredentials, cfg.StoreCA = "", ""
	if got, err := storeAddress(cfg); err != nil || got != cfg.Store {
		t.Errorf("%s, %v", got, err)
	}
}

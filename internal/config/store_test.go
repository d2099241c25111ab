package config

import (
	"strings"
	"testing"
)

// Keys of the store that contradict each other are told by name, with what to do.
func TestCheckStore(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string // in the error; none: no error
	}{
		{"", nil},
		{`store = "file:///var/copies"`, nil}, // a key may be missing: the node's own disk has no other
		{"store = \"file:///var/copies\"\nstore-key-file = \"/k\"", nil},
		{"store = \"s3://b?region=r\"\nstore-key-file = \"/k\"\nstore-credentials = \"env\"\nstore-ca = \"/ca\"", nil},
		{"store = \"s3://b?region=r\"\nstore-key-command = [\"/k\"]", nil},
		{"store = \"s3://b?region=r\"\nstore-insecure-plaintext = true", nil},
		{`store = "s3://b?region=r"`, []string{"store-key-file: an S3 store needs a key", "/dev/urandom", "store-insecure-plaintext"}},
		{`store-key-file = "/k"`, []string{"store-key-file: there is no store"}},
		{"store = \"s3://b?region=r\"\nstore-key-file = \"/k\"\nstore-older-keys = [\"/old\", \"command:/bin/kms\", \"plaintext\"]\nstore-quota = \"1GiB\"", nil},
		{"store-older-keys = [\"/old\"]\nstore-quota = \"1GiB\"", []string{"store-older-keys: there is no store", "store-quota: there is no store"}},
		{"store = \"s3://b\"\nstore-insecure-plaintext = true\nstore-older-keys = [\"plaintext\"]", []string{"store-older-keys: plaintext"}},
		{`store-insecure-plaintext = true`, []string{"store-insecure-plaintext: there is no store"}},
		{"store-credentials = \"env\"\nstore-ca = \"/ca\"", []string{"store-credentials: there is no store", "store-ca: there is no store"}},
		{"store = \"s3://b\"\nstore-key-file = \"/k\"\nstore-key-command = [\"/k\"]", []string{"store-key-file: store-key-command is set, too"}},
		{"store = \"s3://b\"\nstore-key-file = \"/k\"\nstore-insecure-plaintext = true", []string{"store-insecure-plaintext: a key is set, too"}},
		{"store = \"file:///d\"\nstore-credentials = \"aws\"\nstore-ca = \"/ca\"", []string{"store-credentials: a directory", "store-ca: a directory"}},
	} {
		c, err := Load(Input{File: write(t, tc.text)})
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		err = c.CheckStore()
		if (err == nil) != (len(tc.want) == 0) {
			t.Errorf("%s: %v", tc.text, err)
		}
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v doesn't say %q", tc.text, err, want)
			}
		}
	}
	for _, text := range []string{`store = "/var/copies"`, `store-key-file = "k"`, `store-key-command = ["kms"]`, `store-credentials = "me"`, `keep-snapshots = 0`, `store-older-keys = ["old"]`, `node-name = "a/b"`, `delete-after = "5ms"`} {
		if _, err := Load(Input{File: write(t, text)}); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

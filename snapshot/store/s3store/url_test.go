package s3store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
)

func TestURLs(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]s3store.Config{
		"s3://bucket?region=eu-north-1": {Bucket: "bucket", Region: "eu-north-1", Endpoint: "https://s3.eu-north-1.amazonaws.com",
			Credentials: "aws", Checksum: "sha256", Lookup: "path"},
		"s3://buc.ket-1/a/b/?endpoint=https://s3.local:9000/&credentials=/etc/keys&profile=p&checksum=md5&lookup=dns&ca=" + ca: {
			Bucket: "buc.ket-1", Prefix: "a/b", Region: "us-east-1", Endpoint: "https://s3.local:9000",
			CA: ca, Credentials: "/etc/keys", Profile: "p", Checksum: "md5", Lookup: "dns"},
		"s3://bucket/a%20b?endpoint=http%3A%2F%2F%5B%3A%3A1%5D%3A80&credentials=env": {Bucket: "bucket", Prefix: "a b", Region: "us-east-1", Endpoint: "http://[::1]:80",
			Credentials: "env", Checksum: "sha256", Lookup: "path"},
	} {
		got, err := s3store.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got.Timeouts = s3store.Timeouts{}
		if got.Wrap != nil || got.Bucket != want.Bucket || got.Prefix != want.Prefix || got.Region != want.Region || got.Endpoint != want.Endpoint || got.CA != want.CA ||
			got.Credentials != want.Credentials || got.Profile != want.Profile || got.Checksum != want.Checksum || got.Lookup != want.Lookup {
			t.Errorf("%s:\n%+v; want\n%+v", url, got, want)
		}
	}
}

// The error says which part is wrong, and shows no secret.
func TestBadURLsAreNamed(t *testing.T) {
	for url, part := range map[string]string{
		"bucket/prefix":                    "s3://",
		"http://bucket":                    "s3://",
		"s3:///prefix?region=x":            "no bucket",
		"s3://Bucket?region=x":             "bucket's name",
		"s3://host:9000/bucket?region=x":   "can't be read|bucket",
		"s3://b_c?region=x":                "bucket's name",
		"s3://key:hunter2@bucket?region=x": "credentials",
		"s3://bucket":                      "region=",
		"s3://bucket/a//b?region=x":        "prefix",
		"s3://bucket/../b?region=x":        "prefix",
		"s3://bucket/.b?region=x":          "prefix",
		"s3://bucket/" + strings.Repeat("x/", 70) + "?region=x": "prefix",
		"s3://bucket?regoin=x":                              `"regoin"`,
		"s3://bucket?region=x&region=y":                     "region=",
		"s3://bucket?region=x#y":                            "#",
		"s3://bucket?endpoint=host:9000":                    "https://",
		"s3://bucket?endpoint=ftp://host":                   "https://",
		"s3://bucket?endpoint=https://":                     "host",
		"s3://bucket?endpoint=https://host:":                "port",
		"s3://bucket?endpoint=https://host/path":            "endpoint=",
		"s3://bucket?endpoint=https://key:hunter2@host":     "credentials",
		"s3://bucket?endpoint=gopher://key:hunter2@host":    "https://",
		"s3://bucket?region=x&checksum=crc":                 "checksum=",
		"s3://bucket?region=x&lookup=auto":                  "lookup=",
		"s3://bucket?region=x&credentials=keys":             "credentials=",
		"s3://bucket?region=x&ca=ca.pem":                    "ca=",
		"s3://bucket?region=x&ca=/no/such/file":             "ca=",
		"s3://bucket?endpoint=http://host&ca=/etc/hostname": "ca=",
		"s3://key:hunter2%zz@bucket":                        "can't be read",
		"s3://bucket?region=%zz":                            "question mark",
	} {
		_, err := s3store.Parse(url)
		if !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: %v; want it to be refused", url, err)
			continue
		}
		named := false
		for p := range strings.SplitSeq(part, "|") {
			named = named || strings.Contains(err.Error(), p)
		}
		if !named || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want it to name %s, and no secret", url, err, part)
		}
	}
}

func TestCAWithoutACertificate(t *testing.T) {
	_, err := s3store.Open(s3store.Config{Bucket: "bucket", Endpoint: "https://127.0.0.1:1", CA: "/etc/hostname"})
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("%v; want it to be refused: there is no certificate", err)
	}
}

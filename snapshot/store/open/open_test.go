package open_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/filestore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
)

func TestURL(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := open.URL("file://" + strings.ReplaceAll(dir, " ", "%20"))
	if _, ok := s.(*filestore.Store); err != nil || !ok {
		t.Errorf("file: %T, %v", s, err)
	}
	s, err = open.URL("s3://bucket?region=eu-north-1")
	if _, ok := s.(*s3store.Store); err != nil || !ok {
		t.Errorf("s3: %T, %v", s, err)
	}
	for url, say := range map[string]string{
		"":                                "s3://",
		"/var/lib/store":                  "file:///",
		"https://host/bucket":             "s3://",
		"file://relative/path":            "absolute",
		"file:relative":                   "absolute",
		"file://":                         "absolute",
		"file:///%zz":                     "can't be read",
		"file://" + dir + "?x=y":          "question mark",
		"s3://bucket":                     "region=",
		"s3://key:hunter2@bucket?region=": "credentials",
	} {
		_, err := open.URL(url)
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), say) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v; want it to be refused, and told: %s", url, err, say)
		}
	}
	_, err = open.URL("file:///no/such/directory") // it may be mounted later
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "make the directory") {
		t.Errorf("a directory that isn't there: %v", err)
	}
}

// Package open opens the store that a URL names: s3://bucket/prefix?… or file:///directory. Only who links all kinds needs
// it: the daemon.
package open

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/filestore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
)

// URL opens a store. An error says what is wrong with the URL, and shows no secret; one that isn't there an S3 store
// tells only when it is used.
func URL(raw string) (store.Store, error) {
	scheme, _, _ := strings.Cut(raw, ":")
	switch scheme {
	case "s3":
		config, err := s3store.Parse(raw)
		if err != nil {
			return nil, err
		}
		return s3store.Open(config)
	case "file":
		dir, err := directory(raw)
		if err != nil {
			return nil, err
		}
		return filestore.Open(dir)
	}
	return nil, fmt.Errorf("%w: the URL of a store begins with s3:// or file:///", store.ErrRefused)
}

// directory is that of a URL file:///….
func directory(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: the URL of the store can't be read: escape what isn't a letter or digit", store.ErrRefused)
	case u.Host != "" || u.Opaque != "" || u.User != nil || !strings.HasPrefix(u.Path, "/"):
		return "", fmt.Errorf("%w: the URL of the store is wrong: write file:/// and an absolute path", store.ErrRefused)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%w: the URL of the store is wrong: file:/// takes nothing after the path; write %%3F for a question mark", store.ErrRefused)
	}
	return u.Path, nil
}

package s3store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hibernate-runtime/hibernate/internal/version"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// minio-go pauses also after the last of its tries, here the only one.
func init() { minio.DefaultRetryUnit = time.Nanosecond }

// Store is a bucket, or what has a prefix in it.
type Store struct {
	config    Config
	core      minio.Core
	transport *http.Transport
	answers   *answers
	keys      *keyring
}

var _ store.Store = (*Store)(nil)

// Open sends nothing: whether the bucket can be reached the first operation tells.
func Open(c Config) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	transport, err := newTransport(c)
	if err != nil {
		return nil, err
	}
	s := &Store{config: c, transport: transport}
	s.answers = &answers{RoundTripper: transport}
	if c.Wrap != nil {
		s.answers.RoundTripper = c.Wrap(transport)
	}
	s.keys = newKeyring(c, &http.Client{Transport: transport})
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, bad("endpoint= can't be read")
	}
	lookup := minio.BucketLookupPath
	if c.Lookup == "dns" {
		lookup = minio.BucketLookupDNS
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds:        credentials.New(s.keys),
		Secure:       u.Scheme == "https",
		Region:       c.Region,
		BucketLookup: lookup,
		Transport:    s.answers,
		MaxRetries:   1,
	})
	if err != nil {
		return nil, bad("endpoint=%s: %v", c.Endpoint, err)
	}
	client.SetAppInfo("hibernate", version.Version)
	s.core = minio.Core{Client: client}
	return s, nil
}

// Close ends connections that nothing uses.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// key is an object's name in the bucket.
func (s *Store) key(name string) string {
	if s.config.Prefix == "" {
		return name
	}
	return s.config.Prefix + "/" + name
}

// begin is what each operation does first.
func (s *Store) begin(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", op, name, err)
	}
	if err := s.keys.ready(ctx); err != nil {
		return s.failure(ctx, nil, op, name, err)
	}
	return nil
}

func (s *Store) Put(ctx context.Context, name string, body []byte, cond store.Condition) (store.Version, error) {
	if err := store.CheckPut(name, body, cond); err != nil {
		return "", err
	}
	if err := s.begin(ctx, "put", name); err != nil {
		return "", err
	}
	options := minio.PutObjectOptions{
		ContentType:          "application/octet-stream",
		DisableMultipart:     true,
		DisableContentSha256: true, // no signature over chunks: the one over all is given
	}
	switch {
	case cond.Absent:
		options.SetMatchETagExcept("*")
	case cond.Version != "":
		if !isETag(cond.Version) {
			return "", fmt.Errorf("put %s: %w: %q is no version that this store gives", name, store.ErrChanged, cond.Version)
		}
		options.SetMatchETag(string(cond.Version))
	}
	var md5Sum, sha256Sum string
	switch s.config.Checksum {
	case "sha256":
		sum := sha256.Sum256(body)
		sha256Sum = hex.EncodeToString(sum[:])
	case "md5":
		sum := md5.Sum(body)
		md5Sum = base64.StdEncoding.EncodeToString(sum[:])
	}
	// The connection ends an upload that stalls, and the transport one that isn't answered.
	info, err := s.core.PutObject(ctx, s.config.Bucket, s.key(name), bytes.NewReader(body), int64(len(body)), md5Sum, sha256Sum, options)
	if err != nil {
		return "", s.notPut(ctx, name, cond, err)
	}
	tag := etag(info.ETag)
	if tag == "" {
		return "", s.failure(ctx, nil, "put", name, errNoETag)
	}
	return tag, nil
}

// notPut tells a condition that didn't hold from all else.
func (s *Store) notPut(ctx context.Context, name string, cond store.Condition, err error) error {
	if ctx.Err() != nil {
		return s.failure(ctx, nil, "put", name, err)
	}
	switch {
	case cond.Absent && status(err) == http.StatusPreconditionFailed:
		return fmt.Errorf("put %s: %w", name, store.ErrExists)
	case cond.Version != "" && (status(err) == http.StatusPreconditionFailed || absent(err)):
		return fmt.Errorf("put %s: %w", name, store.ErrChanged)
	}
	return s.failure(ctx, nil, "put", name, err)
}

var errNoETag = fmt.Errorf("%w: it gives objects no ETag, without which nothing can be changed by comparison: use another store, or see what a proxy before it takes away", store.ErrRefused)

// etag makes a version of an ETag. A proxy that packs what it passes on makes a weak one of it.
func etag(tag string) store.Version {
	return store.Version(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`))
}

// isETag is whether a version can stand in a header.
func isETag(v store.Version) bool {
	return v != "*" && !strings.ContainsFunc(string(v), func(r rune) bool { return r < '!' || r > '~' || r == '"' })
}

func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if err := s.begin(ctx, "delete", name); err != nil {
		return err
	}
	w := newWatch(ctx, s.config.Timeouts.Answer)
	defer w.stop()
	err := s.core.RemoveObject(w.ctx, s.config.Bucket, s.key(name), minio.RemoveObjectOptions{})
	if err != nil && !absent(err) {
		return s.failure(ctx, w, "delete", name, err)
	}
	return nil
}

func (s *Store) List(ctx context.Context, prefix string) ([]store.Info, time.Time, error) {
	if err := s.begin(ctx, "list", prefix); err != nil {
		return nil, time.Time{}, err
	}
	w := newWatch(ctx, s.config.Timeouts.Page)
	defer w.stop()
	var began time.Time
	var owner bool
	var found []store.Info
	at := s.key("")
	dated := context.WithValue(w.ctx, dateKey{}, &began)
	for o := range s.core.ListObjectsIter(dated, s.config.Bucket, minio.ListObjectsOptions{Prefix: at + prefix, Recursive: true, FetchOwner: &owner}) {
		if o.Err != nil {
			return nil, time.Time{}, s.failure(ctx, w, "list", prefix, o.Err)
		}
		w.alive(s.config.Timeouts.Page)
		name, ours := strings.CutPrefix(o.Key, at)
		switch {
		case !ours || !strings.HasPrefix(name, prefix):
			return nil, time.Time{}, s.failure(ctx, w, "list", prefix, fmt.Errorf("%w: %q is in the list, which has another prefix", store.ErrUnavailable, o.Key))
		case store.CheckName(name) != nil:
			continue // not of ours, as the markers of directories that some programs make
		case len(found) > 0 && name <= found[len(found)-1].Name:
			return nil, time.Time{}, s.failure(ctx, w, "list", prefix, fmt.Errorf("%w: %q comes after %q, so its pages don't fit together", store.ErrUnavailable, name, found[len(found)-1].Name))
		}
		found = append(found, store.Info{Name: name, Size: o.Size, Version: etag(o.ETag), Modified: o.LastModified.Truncate(time.Second)})
	}
	// A context that ends between two pages ends the list without a word.
	if w.ctx.Err() != nil {
		return nil, time.Time{}, s.failure(ctx, w, "list", prefix, w.ctx.Err())
	}
	if began.IsZero() {
		return nil, time.Time{}, s.failure(ctx, w, "list", prefix, errNoDate)
	}
	return found, began, nil
}

var errNoDate = fmt.Errorf("%w: its answers have no Date, by which the age of objects is told: see what a proxy before it takes away", store.ErrRefused)

var errNoLength = errors.New("the answer doesn't say how long the object is: see what a proxy before it does")

package s3store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// roleDeadline is for asking the machine or the pod for its role's keys.
const roleDeadline = 10 * time.Second

// source is one place where keys may be.
type source struct {
	name string
	credentials.Provider
}

// keyring has the keys that requests are signed with. minio-go's own chain signs nothing when it finds none, keeps the
// keys of a file for ever, and lets a request wait longer than its context for keys that another one fetches.
type keyring struct {
	sources []source
	client  *http.Client

	mu       sync.Mutex
	current  credentials.Value
	from     *source
	fetching chan struct{} // closed when err is what came of it
	err      error
	stale    bool // minio-go hasn't seen current yet
}

func newKeyring(c Config, client *http.Client) *keyring {
	k := &keyring{client: client}
	env := source{"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment", &credentials.EnvAWS{}}
	switch c.Credentials {
	case "env":
		k.sources = []source{env}
	case "aws":
		k.sources = []source{env, {"AWS's files", &file{profile: c.Profile}}, {"the machine's role", &credentials.IAM{}}}
	default:
		k.sources = []source{{c.Credentials, &file{path: c.Credentials, profile: c.Profile}}}
	}
	return k
}

// ready makes sure that there are keys that are valid.
func (k *keyring) ready(ctx context.Context) error {
	k.mu.Lock()
	if k.fetching == nil {
		if k.from != nil && !k.from.IsExpired() {
			k.mu.Unlock()
			return nil
		}
		k.fetching = make(chan struct{})
		go k.fetch()
	}
	fetching := k.fetching
	k.mu.Unlock()
	select {
	case <-fetching:
	case <-ctx.Done():
		return fmt.Errorf("waiting for credentials: %w", ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// fetch asks the sources in their order. It is the only one that calls Retrieve.
func (k *keyring) fetch() {
	ctx, cancel := context.WithTimeout(context.Background(), roleDeadline)
	defer cancel()
	var tried []string
	var value credentials.Value
	var from *source
	for i := range k.sources {
		s := &k.sources[i]
		v, err := s.RetrieveWithCredContext(&credentials.CredContext{Client: k.client, Context: ctx})
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			value, from = v, s
			break
		}
		if err == nil {
			err = errors.New("not there")
		}
		tried = append(tried, fmt.Sprintf("%s: %v", s.name, err))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if from != nil {
		k.current, k.from, k.err, k.stale = value, from, nil, true
	} else if k.from == nil || k.err != nil || !usable(k.current) {
		k.err = fmt.Errorf("%w: there are no credentials for the store (%s): give some by credentials= in its URL", store.ErrRefused, strings.Join(tried, "; "))
	}
	close(k.fetching)
	k.fetching = nil
}

// usable keys have not run out: they serve on while new ones can't be had.
func usable(v credentials.Value) bool {
	return v.AccessKeyID != "" && (v.Expiration.IsZero() || time.Now().Before(v.Expiration))
}

// The keyring is a credentials.Provider that never waits.

func (k *keyring) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.from == nil {
		return credentials.Value{}, k.err
	}
	k.stale = false
	return k.current, nil
}

func (k *keyring) Retrieve() (credentials.Value, error) { return k.RetrieveWithCredContext(nil) }

func (k *keyring) IsExpired() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stale || k.from == nil
}

// filesAge is how long the keys of AWS's several files are used until they are read again.
const filesAge = time.Minute

// file is a file of keys that is read again when it has changed, or is another; with no path, those that AWS's tools read.
type file struct {
	path, profile string
	expires       time.Time
	stamp         fs.FileInfo
}

func (f *file) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var stamp fs.FileInfo
	if f.path != "" {
		var err error
		if stamp, err = os.Stat(f.path); err != nil {
			return credentials.Value{}, err
		}
	}
	value, err := (&credentials.FileAWSCredentials{Filename: f.path, Profile: f.profile}).RetrieveWithCredContext(cc)
	if err != nil {
		return credentials.Value{}, err
	}
	if value.AccessKeyID == "" || value.SecretAccessKey == "" {
		return credentials.Value{}, errors.New("no aws_access_key_id and aws_secret_access_key in it, below [default] or the profile that is named")
	}
	f.stamp, f.expires = stamp, value.Expiration
	if f.path == "" && f.expires.IsZero() {
		f.expires = time.Now().Add(filesAge)
	}
	return value, nil
}

func (f *file) Retrieve() (credentials.Value, error) { return f.RetrieveWithCredContext(nil) }

// IsExpired is false for a file that is gone: it may be just being replaced.
func (f *file) IsExpired() bool {
	if !f.expires.IsZero() && time.Now().Add(expiryMargin).After(f.expires) {
		return true
	}
	if f.stamp == nil {
		return false
	}
	now, err := os.Stat(f.path)
	return err == nil && (!os.SameFile(now, f.stamp) || now.Size() != f.stamp.Size() || !now.ModTime().Equal(f.stamp.ModTime()))
}

// expiryMargin is how long before their end keys are fetched anew.
const expiryMargin = 10 * time.Second

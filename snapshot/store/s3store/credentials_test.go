package s3store_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// signedBy is the access key of the last request, and its token.
func (f *fake) signedBy() (key, token string) {
	all := f.requests("")
	if len(all) == 0 {
		return "", ""
	}
	h := all[len(all)-1].Header
	_, rest, _ := strings.Cut(h.Get("Authorization"), "Credential=")
	key, _, _ = strings.Cut(rest, "/")
	return key, h.Get("X-Amz-Security-Token")
}

func writeKeys(t *testing.T, path, key string) {
	t.Helper()
	text := "[other]\naws_access_key_id = of-other\naws_secret_access_key = verysecret\n"
	if key != "" {
		text += "[default]\naws_access_key_id = " + key + "\naws_secret_access_key = verysecret\n"
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsOfAFile(t *testing.T) {
	f := plain(t)
	path := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, path, "first")
	open := func(profile string) *s3store.Store {
		return f.open(t, func(c *s3store.Config) { c.Credentials, c.Profile = path, profile })
	}
	s := open("")
	for _, want := range []string{"first", "first", "second", "second"} {
		if want == "second" {
			writeKeys(t, path, "second") // as a secret that is rotated
		}
		put(t, s, "x", []byte("x"))
		if got, _ := f.signedBy(); got != want {
			t.Errorf("signed by %q; want %q", got, want)
		}
	}
	put(t, open("other"), "x", []byte("x"))
	if got, _ := f.signedBy(); got != "of-other" {
		t.Errorf("signed by %q; want the profile's", got)
	}
	// What is just being replaced doesn't stop those who have its keys.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	put(t, s, "x", []byte("x"))
	if got, _ := f.signedBy(); got != "second" {
		t.Errorf("signed by %q; want the keys that were there", got)
	}
}

func TestCredentialsOfTheEnvironment(t *testing.T) {
	f := plain(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "of-env")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
	t.Setenv("AWS_SESSION_TOKEN", "token")
	for _, kind := range []string{"env", "aws"} {
		s := f.open(t, func(c *s3store.Config) { c.Credentials = kind })
		put(t, s, "x", []byte("x"))
		if got, token := f.signedBy(); got != "of-env" || token != "token" {
			t.Errorf("credentials=%s: signed by %q; want the environment's, and its token", kind, got)
		}
	}
}

func TestCredentialsOfAWSsFiles(t *testing.T) {
	f := plain(t)
	path := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, path, "of-home")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", path)
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	s := f.open(t, func(c *s3store.Config) { c.Credentials = "aws" })
	put(t, s, "x", []byte("x"))
	if got, _ := f.signedBy(); got != "of-home" {
		t.Errorf("signed by %q; want those of AWS's files", got)
	}
}

// Without credentials nothing is sent: minio-go alone would send it unsigned.
func TestNoCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY"} {
		t.Setenv(name, "")
	}
	empty := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, empty, "")
	for _, from := range []string{"env", "/no/such/file", empty} {
		f := plain(t)
		s := f.open(t, func(c *s3store.Config) { c.Credentials = from })
		for op, call := range calls(s) {
			err := call(t.Context())
			only(t, from+": "+op, err, store.ErrRefused)
			if err != nil && !strings.Contains(err.Error(), "credentials=") {
				t.Errorf("%s: %v; want what to do", from, err)
			}
		}
		if len(f.requests("")) > 0 {
			t.Errorf("%s: %d requests were sent", from, len(f.requests("")))
		}
	}
	// They come later.
	f := plain(t)
	path := filepath.Join(t.TempDir(), "late")
	s := f.open(t, func(c *s3store.Config) { c.Credentials = path })
	only(t, "too early", s.Delete(t.Context(), "x"), store.ErrRefused)
	writeKeys(t, path, "late")
	put(t, s, "x", []byte("x"))
}

// What a person gets to read when something is configured wrong, from a real server.
func TestWrongConfigurations(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			server := storetest.Versitygw(t, mode.tls)
			bucket := server.Bucket(t)
			keys := func(access, secret string) string {
				path := filepath.Join(t.TempDir(), "keys")
				if err := os.WriteFile(path, []byte("[default]\naws_access_key_id = "+access+"\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			good := openURL(t, server.URL(bucket, "p"), nil)
			put(t, good, "x", []byte("x"))
			type wrong struct {
				say    string
				change func(*s3store.Config)
			}
			cases := map[string]wrong{
				"access key": {"access key: correct the credentials", func(c *s3store.Config) { c.Credentials = keys("nobody", server.Secret) }},
				"secret":     {"secret key isn't the access key's", func(c *s3store.Config) { c.Credentials = keys(server.Access, "verysecret") }},
				"bucket":     {"make the bucket", func(c *s3store.Config) { c.Bucket = "not-there" }},
				"region":     {"region=", func(c *s3store.Config) { c.Region = "mars-1" }},
				"clock": {"set this machine's clock", func(c *s3store.Config) {
					c.Wrap = func(rt http.RoundTripper) http.RoundTripper { return late{rt} }
				}},
			}
			if mode.tls {
				cases["CA"] = wrong{"ca=", func(c *s3store.Config) { c.CA = "" }}
				cases["scheme"] = wrong{"", func(c *s3store.Config) { c.CA = ""; c.Endpoint = strings.Replace(c.Endpoint, "https:", "http:", 1) }}
			} else {
				cases["scheme"] = wrong{"http://", func(c *s3store.Config) { c.Endpoint = strings.Replace(c.Endpoint, "http:", "https:", 1) }}
			}
			for what, c := range cases {
				s := openURL(t, server.URL(bucket, "p"), c.change)
				for op, call := range calls(s) {
					err := call(t.Context())
					if what == "scheme" && mode.tls { // the server hangs up on what isn't TLS
						if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrRefused) {
							t.Errorf("wrong %s: %s: %v", what, op, err)
						}
						continue
					}
					only(t, "wrong "+what+": "+op, err, store.ErrRefused)
					if err != nil && (!strings.Contains(err.Error(), c.say) || strings.Contains(err.Error(), server.Secret) || strings.Contains(err.Error(), "verysecret")) {
						t.Errorf("wrong %s: %s: %v; want what to do (%s), and no secret", what, op, err, c.say)
					}
				}
			}
			if body, _, err := good.Get(t.Context(), "x", 10); err != nil || string(body) != "x" {
				t.Errorf("%q, %v; want what was there: nothing of the above may have done anything", body, err)
			}
		})
	}
}

// late changes the request's time, which breaks its signature, too: servers look at the time first.
type late struct{ http.RoundTripper }

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Amz-Date", time.Now().Add(-time.Hour).UTC().Format("20060102T150405Z"))
	return l.RoundTripper.RoundTrip(r)
}

// The answer of a server that is killed while it works is unknown, and a server that is back is used again.
func TestServerThatIsKilled(t *testing.T) {
	server := storetest.Versitygw(t, false)
	s := openURL(t, server.URL(server.Bucket(t), ""), nil)
	put(t, s, "x", []byte("before"))
	server.Kill()
	for op, call := range calls(s) {
		only(t, op, call(t.Context()), store.ErrUnavailable)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if body, _, err := s.Get(t.Context(), "x", 10); err != nil || string(body) != "before" {
		t.Errorf("%q, %v; want what was there", body, err)
	}
}

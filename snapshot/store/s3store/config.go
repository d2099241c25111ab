package s3store

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Config is where a store is, and how it is spoken to.
type Config struct {
	Bucket   string
	Prefix   string // of all names, with no slash at either end; may be empty
	Endpoint string // http://… or https://…, without a path; empty: AWS
	Region   string
	CA       string // file with the certificates that the server's may be signed by; empty: the system's

	// Credentials are "env" (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), the absolute path of a file as
	// AWS's tools have it, which is read anew when it changes, or "aws": the environment, then AWS's files, then the
	// machine's or the pod's role.
	Credentials string
	Profile     string // in the file; empty: AWS_PROFILE, or default

	Checksum string // of what is sent: "sha256" in the signature, "md5" as Content-MD5 where a server takes no other, "none"
	Lookup   string // the bucket in the "path", or in the host's name: "dns"

	Timeouts Timeouts

	// Wrap wraps the transport. For tests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Timeouts end what doesn't move. Zero is the default.
type Timeouts struct {
	Connect time.Duration // of TCP, and again of TLS; 5 s
	Answer  time.Duration // until the answer to a request that carries nothing begins; 15 s
	Written time.Duration // until the answer to an upload begins, once all of it is sent; 60 s
	Stall   time.Duration // without any byte, within a body that is read or sent; 10 s
	Page    time.Duration // for one page of a list; 60 s
}

func (t Timeouts) orDefaults() Timeouts {
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&t.Connect, 5 * time.Second}, {&t.Answer, 15 * time.Second}, {&t.Written, time.Minute}, {&t.Stall, 10 * time.Second}, {&t.Page, time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	return t
}

// keys are what a URL may say after the question mark.
var keys = []string{"endpoint", "region", "ca", "credentials", "profile", "checksum", "lookup"}

// bucketName is what S3 takes.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Parse reads s3://bucket/prefix?endpoint=https://host:port&region=…&ca=/file&credentials=env|aws|/file&profile=…&
// checksum=sha256|md5|none&lookup=path|dns. An error names the part that is wrong, and never a secret.
func Parse(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Config{}, bad("it can't be read; escape what isn't a letter or digit") // the error would show all of it
	}
	if u.Scheme != "s3" {
		return Config{}, bad("it begins with %q, and not with s3://", u.Scheme+"://")
	}
	if u.User != nil {
		return Config{}, bad("there are credentials in it: put them into a file and write credentials=/that/file")
	}
	if u.Fragment != "" {
		return Config{}, bad("there is a # in it: write %%23")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Config{}, bad("what follows the question mark can't be read")
	}
	for key, values := range query {
		if !slices.Contains(keys, key) {
			return Config{}, bad("there is no key %q; there are %s", key, strings.Join(keys, ", "))
		}
		if len(values) > 1 {
			return Config{}, bad("%s= is there %d times", key, len(values))
		}
	}
	c := Config{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"),
		Endpoint: query.Get("endpoint"), Region: query.Get("region"), CA: query.Get("ca"),
		Credentials: query.Get("credentials"), Profile: query.Get("profile"), Checksum: query.Get("checksum"), Lookup: query.Get("lookup"),
	}
	return c, c.complete()
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: the URL of the store is wrong: %s", store.ErrRefused, fmt.Sprintf(format, args...))
}

// complete fills in defaults, and says what is wrong.
func (c *Config) complete() error {
	for _, d := range []struct {
		value *string
		or    string
	}{{&c.Credentials, "aws"}, {&c.Checksum, "sha256"}, {&c.Lookup, "path"}} {
		if *d.value == "" {
			*d.value = d.or
		}
	}
	c.Timeouts = c.Timeouts.orDefaults()
	switch {
	case c.Bucket == "":
		return bad("no bucket is named: s3://bucket/prefix")
	case !bucketName.MatchString(c.Bucket):
		return bad("%q can't be a bucket's name; an endpoint goes into endpoint=", c.Bucket)
	case c.Prefix != "" && store.CheckName(c.Prefix) != nil:
		return bad("%q can't be a prefix of names", c.Prefix)
	case c.Prefix != "" && len(c.Prefix) > maxPrefix:
		return bad("the prefix is longer than %d bytes", maxPrefix)
	case !slices.Contains([]string{"sha256", "md5", "none"}, c.Checksum):
		return bad("checksum=%s: there are sha256, md5 and none", c.Checksum)
	case !slices.Contains([]string{"path", "dns"}, c.Lookup):
		return bad("lookup=%s: there are path and dns", c.Lookup)
	case c.Credentials != "env" && c.Credentials != "aws" && !strings.HasPrefix(c.Credentials, "/"):
		return bad("credentials=: there are env, aws, and the absolute path of a file")
	case c.CA != "" && !strings.HasPrefix(c.CA, "/"):
		return bad("ca=%s is no absolute path", c.CA)
	}
	return c.completeEndpoint()
}

// maxPrefix leaves store.MaxName of the 1024 bytes that S3 takes.
const maxPrefix = 1024 - store.MaxName - 1

func (c *Config) completeEndpoint() error {
	if c.Endpoint == "" {
		if c.Region == "" {
			return bad("neither endpoint= nor region= is there: AWS needs the region")
		}
		c.Endpoint = "https://s3." + c.Region + ".amazonaws.com"
	}
	if c.Region == "" {
		c.Region = "us-east-1" // what servers that know no regions call theirs
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil:
		return bad("endpoint= can't be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("endpoint=%s: write https:// or http:// before it", u.Redacted())
	case u.User != nil:
		return bad("there are credentials in endpoint=: put them into a file and write credentials=/that/file")
	case u.Hostname() == "":
		return bad("endpoint=%s names no host", c.Endpoint)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return bad("endpoint=%s: it must end after host and port; a prefix goes behind the bucket", c.Endpoint)
	case c.CA != "" && u.Scheme == "http":
		return bad("ca= is there, and endpoint= is http://, which uses none")
	}
	if _, port, err := net.SplitHostPort(u.Host); err == nil && port == "" {
		return bad("endpoint=%s has a colon and no port", c.Endpoint)
	}
	if c.CA != "" {
		if _, err := os.Stat(c.CA); err != nil {
			return bad("ca=: %v", err)
		}
	}
	c.Endpoint = u.Scheme + "://" + u.Host
	return nil
}

package s3store_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// wire keeps what is sent, as the transport gets it.
type wire struct {
	http.RoundTripper
	mu   sync.Mutex
	sent []*http.Request
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.sent = append(w.sent, r.Clone(r.Context()))
	w.mu.Unlock()
	return w.RoundTripper.RoundTrip(r)
}

// tapped opens a store whose requests are kept.
func tapped(t *testing.T, f *fake, change func(*s3store.Config)) (*s3store.Store, *wire) {
	w := &wire{}
	s := f.open(t, func(c *s3store.Config) {
		c.Wrap = func(rt http.RoundTripper) http.RoundTripper { w.RoundTripper = rt; return w }
		if change != nil {
			change(c)
		}
	})
	return s, w
}

// large is more than the smallest part of a multipart upload, and than what minio-go sends whole by itself (16 MiB).
const large = 17 << 20

func TestConditionsAreOnTheWire(t *testing.T) {
	f := plain(t)
	s, w := tapped(t, f, nil)
	for name, size := range map[string]int{"small": 10, "large": large} {
		w.sent = nil
		version, err := s.Put(t.Context(), name, make([]byte, size), store.Condition{Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Put(t.Context(), name, make([]byte, size), store.Condition{Version: version}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Put(t.Context(), name, make([]byte, size), store.Always); err != nil {
			t.Fatal(err)
		}
		if len(w.sent) != 3 {
			t.Fatalf("%s: three writes are %d requests", name, len(w.sent))
		}
		for i, want := range []struct{ noneMatch, match string }{{"*", ""}, {"", `"` + string(version) + `"`}, {"", ""}} {
			got := w.sent[i].Header
			if got.Get("If-None-Match") != want.noneMatch || got.Get("If-Match") != want.match {
				t.Errorf("%s: request %d says If-None-Match %q, If-Match %q; want %+v", name, i, got.Get("If-None-Match"), got.Get("If-Match"), want)
			}
			for _, header := range []string{"If-None-Match", "If-Match"} {
				if got.Get(header) != "" && !signed(got, header) {
					t.Errorf("%s: %s isn't signed: %s", name, header, got.Get("Authorization"))
				}
			}
		}
	}
}

// signed is whether the signature covers a header.
func signed(h http.Header, header string) bool {
	_, rest, _ := strings.Cut(h.Get("Authorization"), "SignedHeaders=")
	list, _, _ := strings.Cut(rest, ",")
	return slices.Contains(strings.Split(list, ";"), strings.ToLower(header))
}

func TestLargeObjectIsOnePut(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	body := make([]byte, large)
	if _, err := s.Put(t.Context(), "large", body, store.Condition{Absent: true}); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.requests("") {
		if r.Method != http.MethodPut || r.URL.Path != "/bucket/some/prefix/large" || r.URL.RawQuery != "" || r.ContentLength != large {
			t.Errorf("%s %s, %d bytes; want one PUT of all, in path style", r.Method, r.URL, r.ContentLength)
		}
	}
	if len(f.requests("")) != 1 {
		t.Errorf("%d requests; want one, and none for the bucket's region", len(f.requests("")))
	}
}

func TestPayloadIsSigned(t *testing.T) {
	body := []byte("these are the bytes")
	sha, sum := sha256.Sum256(body), md5.Sum(body)
	for checksum, want := range map[string]struct{ payload, md5 string }{
		"sha256": {hex.EncodeToString(sha[:]), ""},
		"md5":    {"UNSIGNED-PAYLOAD", base64.StdEncoding.EncodeToString(sum[:])},
		"none":   {"UNSIGNED-PAYLOAD", ""},
	} {
		f := plain(t)
		s := f.open(t, func(c *s3store.Config) { c.Checksum = checksum })
		if _, err := s.Put(t.Context(), "x", body, store.Always); err != nil {
			t.Fatal(err)
		}
		h := f.requests(http.MethodPut)[0].Header
		if h.Get("X-Amz-Content-Sha256") != want.payload || h.Get("Content-Md5") != want.md5 {
			t.Errorf("checksum=%s: X-Amz-Content-Sha256 %q, Content-Md5 %q; want %+v", checksum, h.Get("X-Amz-Content-Sha256"), h.Get("Content-Md5"), want)
		}
		if !signed(h, "X-Amz-Content-Sha256") {
			t.Errorf("checksum=%s: the payload's hash isn't signed", checksum)
		}
		for header := range h {
			if strings.HasPrefix(header, "X-Amz-Checksum") || header == "X-Amz-Trailer" || header == "X-Amz-Sdk-Checksum-Algorithm" {
				t.Errorf("checksum=%s: there is %s, which many servers refuse", checksum, header)
			}
		}
		if got := f.requests(http.MethodPut)[0]; len(got.TransferEncoding) > 0 || got.ContentLength != int64(len(body)) {
			t.Errorf("checksum=%s: sent in chunks (%v), %d bytes", checksum, got.TransferEncoding, got.ContentLength)
		}
	}
}

// A real server refuses bytes that aren't those that were signed, and takes each checksum, over http and over TLS.
func TestChecksumsOnAServer(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			server := storetest.Versitygw(t, mode.tls)
			bucket := server.Bucket(t)
			for _, checksum := range []string{"sha256", "md5", "none"} {
				s := openURL(t, server.URL(bucket, ""), func(c *s3store.Config) { c.Checksum = checksum })
				if _, err := s.Put(t.Context(), "good", []byte("these are the bytes"), store.Always); err != nil {
					t.Errorf("checksum=%s: %v", checksum, err)
				}
				if checksum == "none" {
					continue
				}
				s = openURL(t, server.URL(bucket, ""), func(c *s3store.Config) {
					c.Checksum = checksum
					c.Wrap = func(rt http.RoundTripper) http.RoundTripper { return spoiler{rt} }
				})
				if _, err := s.Put(t.Context(), "bad", []byte("these are the bytes"), store.Always); err == nil {
					t.Errorf("checksum=%s: the server took other bytes than were sent", checksum)
				} else if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("checksum=%s: %v; want one that may be tried again", checksum, err)
				}
			}
		})
	}
}

// spoiler changes a byte of each body on its way.
type spoiler struct{ http.RoundTripper }

func (s spoiler) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return s.RoundTripper.RoundTrip(r)
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	body[3] ^= 1
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	return s.RoundTripper.RoundTrip(r)
}

func TestNoHTTP2(t *testing.T) {
	f := newFake(t, func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
	s := f.open(t, func(c *s3store.Config) { c.CA = caFile(t, f.Certificate().Raw) })
	if _, err := s.Put(t.Context(), "x", []byte("x"), store.Always); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(t.Context(), "x", 10); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.requests("") {
		if r.ProtoMajor != 1 {
			t.Errorf("%s by %s, of a server that offers HTTP/2; want HTTP/1.1", r.Method, r.Proto)
		}
	}
}

// caFile writes a certificate for ca=.
func caFile(t *testing.T, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

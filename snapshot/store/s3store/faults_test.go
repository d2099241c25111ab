package s3store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
)

// calls are all operations, for faults that all of them must bear.
func calls(s store.Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"put": func(ctx context.Context) error { _, err := s.Put(ctx, "x", []byte("new"), store.Always); return err },
		"put new": func(ctx context.Context) error {
			_, err := s.Put(ctx, "x", []byte("new"), store.Condition{Absent: true})
			return err
		},
		"put changed": func(ctx context.Context) error {
			_, err := s.Put(ctx, "x", []byte("new"), store.Condition{Version: "tag-1"})
			return err
		},
		"get":    func(ctx context.Context) error { _, _, err := s.Get(ctx, "x", 1000); return err },
		"range":  func(ctx context.Context) error { _, err := s.GetRange(ctx, "x", 0, 1); return err },
		"stat":   func(ctx context.Context) error { _, err := s.Stat(ctx, "x"); return err },
		"list":   func(ctx context.Context) error { _, _, err := s.List(ctx, ""); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, "x") },
	}
}

// only fails unless err is want, and none of the other errors that callers decide on, nor a context's.
func only(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
	for _, other := range []error{store.ErrNotFound, store.ErrExists, store.ErrChanged, store.ErrTooLarge, store.ErrRefused, store.ErrUnavailable, context.Canceled, context.DeadlineExceeded} {
		if other != want && errors.Is(err, other) {
			t.Errorf("%s: %v, which is %v, too", what, err, other)
		}
	}
}

func put(t *testing.T, s store.Store, name string, body []byte) store.Version {
	t.Helper()
	version, err := s.Put(t.Context(), name, body, store.Always)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// The bytes are there, and the answer that says so is lost: that must not become "somebody else was first".
func TestLostAnswerOfAWonWrite(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	version := put(t, s, "head", []byte("before"))
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		f.serve(httptest.NewRecorder(), r)
		hangUp(w)
		return true
	})
	sent := len(f.requests(http.MethodPut))
	_, err := s.Put(t.Context(), "head", []byte("mine, nonce 1"), store.Condition{Version: version})
	only(t, "put over a version", err, store.ErrUnavailable)
	_, err = s.Put(t.Context(), "pack", []byte("mine, nonce 2"), store.Condition{Absent: true})
	only(t, "put of a new one", err, store.ErrUnavailable)
	if n := len(f.requests(http.MethodPut)) - sent; n != 2 {
		t.Errorf("two writes with conditions were sent %d times; want once each", n)
	}
	for name, want := range map[string]string{"head": "mine, nonce 1", "pack": "mine, nonce 2"} {
		if body, _, err := s.Get(t.Context(), name, 100); err != nil || string(body) != want {
			t.Errorf("%s is %q, %v; want %q, by which the caller knows that it has won", name, body, err, want)
		}
	}
}

// Nothing is sent twice, by whatever is below: neither after an answer nor without one, on a fresh connection or a used one.
func TestEachRequestIsSentOnce(t *testing.T) {
	for what, fault := range map[string]func(w http.ResponseWriter){
		"slow down":  func(w http.ResponseWriter) { s3Error(w, 503, "SlowDown") },
		"internal":   func(w http.ResponseWriter) { s3Error(w, 500, "InternalError") },
		"hanging up": hangUp,
	} {
		t.Run(what, func(t *testing.T) {
			f := plain(t)
			s := f.open(t, nil)
			for op, call := range calls(s) {
				f.fail(func(w http.ResponseWriter, r *http.Request) bool { fault(w); return true })
				before := len(f.requests(""))
				only(t, op, call(t.Context()), store.ErrUnavailable)
				// Go's transport sends what only reads again when a used connection is closed just then.
				if sent := len(f.requests("")) - before; sent != 1 && (strings.HasPrefix(op, "put") || what != "hanging up") {
					t.Errorf("%s: sent %d times; want once", op, sent)
				}
				f.fail(nil) // so that the next one finds a used connection
				if err := s.Delete(t.Context(), "other"); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestConflictIsNotExists(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	for _, code := range []string{"ConditionalRequestConflict", "OperationAborted"} {
		f.fail(func(w http.ResponseWriter, r *http.Request) bool { s3Error(w, 409, code); return true })
		for op, call := range calls(s) {
			only(t, op, call(t.Context()), store.ErrUnavailable)
		}
	}
}

// What isn't a success is none, whatever it is: also what has no body or one that can't be read.
func TestOnlySuccessIsSuccess(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	for _, code := range []int{301, 304, 307, 400, 401, 403, 404, 408, 409, 412, 416, 429, 499, 500, 501, 502, 503, 504, 507, 520} {
		for _, body := range []string{"", "<html>go away</html>", "<Error><Code>Strange</Code></Error>", "\x00\xff"} {
			f.fail(func(w http.ResponseWriter, r *http.Request) bool {
				w.WriteHeader(code)
				if code != 304 {
					io.WriteString(w, body)
				}
				return true
			})
			for op, call := range calls(s) {
				err := call(t.Context())
				switch {
				case err == nil:
					t.Errorf("%s: %d %q counts as success", op, code, body)
				case errors.Is(err, store.ErrNotFound):
					t.Errorf("%s: %d %q counts as absent", op, code, body)
				case errors.Is(err, store.ErrExists) != (code == 412 && op == "put new"), errors.Is(err, store.ErrChanged) != (code == 412 && op == "put changed"):
					t.Errorf("%s: %d %q: %v", op, code, body, err)
				}
			}
		}
	}
}

func TestOnlyNoSuchKeyIsAbsent(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	for _, c := range []struct {
		what string
		say  func(w http.ResponseWriter)
		want error
	}{
		{"an access key that versitygw doesn't know", func(w http.ResponseWriter) { s3Error(w, 404, "XAdminUserNotFound") }, store.ErrRefused},
		{"no such bucket", func(w http.ResponseWriter) { s3Error(w, 404, "NoSuchBucket") }, store.ErrRefused},
		{"nothing at all", func(w http.ResponseWriter) { w.WriteHeader(404) }, store.ErrUnavailable},
		{"a proxy's page", func(w http.ResponseWriter) { w.WriteHeader(404); io.WriteString(w, "<html>default backend</html>") }, store.ErrUnavailable},
		{"another status", func(w http.ResponseWriter) { s3Error(w, 500, "NoSuchKey") }, store.ErrUnavailable},
	} {
		f.fail(func(w http.ResponseWriter, r *http.Request) bool { c.say(w); return true })
		for op, call := range calls(s) {
			only(t, c.what+": "+op, call(t.Context()), c.want)
		}
	}
	f.fail(nil)
	_, err := s.Stat(t.Context(), "not/there")
	only(t, "stat of what isn't there", err, store.ErrNotFound)
}

// A server that takes connections and says nothing, with a context that has no end.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := plain(t)
	url := "http://" + l.Addr().String() // the backlog takes them
	patient := func(forget func(*s3store.Timeouts) *time.Duration) store.Store {
		return f.open(t, func(c *s3store.Config) { impatient(c); c.Endpoint = url; *forget(&c.Timeouts) = time.Hour })
	}
	reading := patient(func(t *s3store.Timeouts) *time.Duration { return &t.Written })
	writing := patient(func(t *s3store.Timeouts) *time.Duration { return &t.Answer })
	var wg sync.WaitGroup
	for op := range calls(reading) {
		call := calls(reading)[op]
		if strings.HasPrefix(op, "put") {
			call = calls(writing)[op]
		}
		wg.Go(func() { only(t, op, call(context.WithoutCancel(t.Context())), store.ErrUnavailable) })
	}
	wg.Wait()
	// The caller's own deadline is told as that.
	s := f.open(t, func(c *s3store.Config) { c.Endpoint = url })
	for op, call := range calls(s) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		only(t, op, call(ctx), context.DeadlineExceeded)
		cancel()
	}
}

func TestNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	f := plain(t)
	s := f.open(t, func(c *s3store.Config) { c.Endpoint = "http://" + l.Addr().String() })
	for op, call := range calls(s) {
		only(t, op, call(t.Context()), store.ErrUnavailable)
	}
}

// An upload that the server doesn't take ends, too: Go's transport alone would wait for ever.
func TestUploadThatNobodyReads(t *testing.T) {
	released := make(chan struct{})
	f := plain(t)
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.(*net.TCPConn).SetReadBuffer(4096)
		<-released
		conn.Close()
		return true
	})
	defer close(released)
	s := f.open(t, func(c *s3store.Config) { impatient(c); c.Timeouts.Written = time.Hour })
	_, err := s.Put(context.WithoutCancel(t.Context()), "x", make([]byte, 64<<20), store.Always)
	only(t, "put", err, store.ErrUnavailable)
}

// cut answers a GET with the part of the object up to some byte, and then does what then says.
func (f *fake) cut(after int64, times int, then func(r *http.Request)) {
	var cuts atomic.Int64
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || cuts.Add(1) > int64(times) {
			return false
		}
		f.serve(&cutWriter{w, after}, r)
		w.(http.Flusher).Flush()
		then(r)
		hangUp(w)
		return true
	})
}

type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if int64(len(b)) <= c.left {
		c.left -= int64(len(b))
		return c.ResponseWriter.Write(b)
	}
	n, _ := c.ResponseWriter.Write(b[:c.left])
	c.left = 0
	return n, errors.New("cut")
}

func counted(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.Bytes()[:n]
}

func TestBrokenBodyIsResumed(t *testing.T) {
	stall := func(r *http.Request) { <-r.Context().Done() }
	for what, then := range map[string]func(*http.Request){"hangs up": func(*http.Request) {}, "stalls": stall} {
		t.Run(what, func(t *testing.T) {
			f := plain(t)
			s := f.open(t, impatient)
			want := counted(1 << 20)
			put(t, s, "x", want)
			f.cut(300_000, 2, then)
			body, _, err := s.Get(t.Context(), "x", 1<<20)
			if err != nil || !bytes.Equal(body, want) {
				t.Fatalf("get: %d bytes, %v; want all", len(body), err)
			}
			gets := f.requests(http.MethodGet)
			if len(gets) != 3 {
				t.Fatalf("%d requests; want 3", len(gets))
			}
			for i, want := range []string{"", "bytes=300000-1048575", "bytes=600000-1048575"} {
				if got := gets[i].Header.Get("Range"); got != want {
					t.Errorf("request %d is for %q; want %q", i, got, want)
				}
			}
			f.cut(300_000, 2, then)
			part, err := s.GetRange(t.Context(), "x", 1000, 1_000_000)
			if err != nil || !bytes.Equal(part, want[1000:1_001_000]) {
				t.Errorf("range: %d bytes, %v; want all", len(part), err)
			}
		})
	}
}

func TestBodyThatAlwaysBreaks(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	put(t, s, "x", counted(1000))
	f.cut(10, 1<<30, func(*http.Request) {})
	_, _, err := s.Get(t.Context(), "x", 1000)
	only(t, "get", err, store.ErrUnavailable)
	_, err = s.GetRange(t.Context(), "x", 0, 1000)
	only(t, "range", err, store.ErrUnavailable)
}

// The object is replaced while it is read: the bytes of two must not be joined.
func TestResumeIsOfTheSameObject(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	put(t, s, "x", bytes.Repeat([]byte("old "), 100_000))
	fresh := bytes.Repeat([]byte("new "), 100_000)
	f.cut(100_000, 1, func(*http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.store("some/prefix/x", fresh)
	})
	body, info, err := s.Get(t.Context(), "x", 1<<20)
	if err != nil || !bytes.Equal(body, fresh) || info.Version != "tag-2" {
		t.Errorf("get: %d bytes that begin with %.8q, version %s, %v; want those of the new object alone", len(body), body, info.Version, err)
	}
}

// A server, or what is before it, that sends other bytes than were asked for.
func TestWrongRanges(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	put(t, s, "x", counted(1000))
	for what, c := range map[string]struct {
		status int
		ranged string
		want   error
	}{
		"all instead of a part": {200, "", store.ErrRefused},
		"another beginning":     {206, "bytes 0-99/1000", store.ErrUnavailable},
		"more than asked":       {206, "bytes 100-299/1000", store.ErrUnavailable},
		"less, at the end":      {206, "bytes 100-149/150", io.ErrUnexpectedEOF},
		"nonsense":              {206, "bytes 300-100/1000", store.ErrRefused},
	} {
		f.fail(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("ETag", `"tag-1"`)
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			if c.ranged != "" {
				w.Header().Set("Content-Range", c.ranged)
			}
			w.WriteHeader(c.status)
			w.Write(counted(1000))
			return true
		})
		_, err := s.GetRange(t.Context(), "x", 100, 100)
		only(t, what, err, c.want)
	}
}

func TestNoETagIsRefused(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	put(t, s, "x", []byte("x"))
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		noETag := &noETag{ResponseWriter: w}
		f.serve(noETag, r)
		noETag.WriteHeader(200)
		return true
	})
	for _, op := range []string{"put", "get", "stat"} {
		only(t, op, calls(s)[op](t.Context()), store.ErrRefused)
	}
}

// noETag takes the ETag away, as some proxies do.
type noETag struct {
	http.ResponseWriter
	begun bool
}

func (n *noETag) WriteHeader(code int) {
	if !n.begun {
		n.begun = true
		n.Header().Del("ETag")
		n.ResponseWriter.WriteHeader(code)
	}
}

func (n *noETag) Write(b []byte) (int, error) {
	n.WriteHeader(200)
	return n.ResponseWriter.Write(b)
}

// nothing is left out of a list without an error.
func TestBrokenLists(t *testing.T) {
	page := func(truncated bool, token string, keys ...string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", truncated, token)
		for _, key := range keys {
			fmt.Fprintf(&b, "<Contents><Key>some/prefix/%s</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified></Contents>", key)
		}
		return b.String() + "</ListBucketResult>"
	}
	good := page(true, "next", "a", "b")
	for what, second := range map[string]func(w http.ResponseWriter, r *http.Request){
		"slow down": func(w http.ResponseWriter, _ *http.Request) { s3Error(w, 503, "SlowDown") },
		"hangs up":  func(w http.ResponseWriter, _ *http.Request) { hangUp(w) },
		"hangs":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"stalls within": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, page(false, "", "c")[:90])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"ends early":     func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page(false, "", "c")[:90]) },
		"isn't XML":      func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
		"is empty":       func(http.ResponseWriter, *http.Request) {},
		"has no token":   func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page(true, "", "c")) },
		"comes twice":    func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, good) },
		"isn't in order": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page(false, "", "d", "c")) },
		"is another's": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.ReplaceAll(page(false, "", "c"), "some/", "other/"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := plain(t)
			s := f.open(t, impatient)
			f.fail(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("continuation-token") == "" {
					io.WriteString(w, good)
				} else {
					second(w, r)
				}
				return true
			})
			found, _, err := s.List(t.Context(), "")
			if found != nil {
				t.Error("there is a list:", found)
			}
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("the second page %s: %v; want %v", what, err, store.ErrUnavailable)
			}
		})
	}
}

// minio-go ends a list without a word when the context ends between two pages.
func TestListWhoseContextEnds(t *testing.T) {
	f := plain(t)
	f.page = 2
	s := f.open(t, nil)
	for i := range 5 {
		put(t, s, fmt.Sprint(i), []byte("x"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	s2 := f.open(t, func(c *s3store.Config) {
		c.Wrap = func(rt http.RoundTripper) http.RoundTripper { return cancelAtEnd{rt, cancel} }
	})
	found, _, err := s2.List(ctx, "")
	if !errors.Is(err, context.Canceled) || found != nil {
		t.Errorf("%d listed, %v; want none, and %v", len(found), err, context.Canceled)
	}
	if found, _, err := s.List(t.Context(), ""); err != nil || len(found) != 5 {
		t.Errorf("%d listed, %v; want 5 of three pages", len(found), err)
	}
}

// cancelAtEnd ends the context when an answer has been read.
type cancelAtEnd struct {
	http.RoundTripper
	cancel func()
}

func (c cancelAtEnd) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(all))
	c.cancel()
	return answer, err
}

func TestListWithoutADate(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	f.fail(func(w http.ResponseWriter, r *http.Request) bool { w.Header()["Date"] = nil; return false })
	_, _, err := s.List(t.Context(), "")
	only(t, "list", err, store.ErrRefused)
}

// The time of a list is the server's, and that of its beginning.
func TestListHasTheServersClock(t *testing.T) {
	f := plain(t)
	f.page = 1
	s := f.open(t, nil)
	put(t, s, "a", []byte("x"))
	put(t, s, "b", []byte("x"))
	began := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	date := began
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Date", date.Format(http.TimeFormat))
		date = date.Add(time.Hour)
		return false
	})
	if found, got, err := s.List(t.Context(), ""); err != nil || len(found) != 2 || !got.Equal(began) {
		t.Errorf("%d listed, at %v, %v; want 2, at %v", len(found), got, err, began)
	}
}

func TestSkewIsTold(t *testing.T) {
	f := plain(t)
	s := f.open(t, nil)
	f.fail(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(20*time.Minute).UTC().Format(http.TimeFormat))
		s3Error(w, 403, "RequestTimeTooSkewed")
		return true
	})
	for op, call := range calls(s) {
		err := call(t.Context())
		only(t, op, err, store.ErrRefused)
		if err != nil && (!strings.Contains(err.Error(), "set this machine's clock") || !strings.Contains(err.Error(), "ahead of this machine's")) {
			t.Errorf("%s: %v; want what to do, and how far the clocks are apart", op, err)
		}
	}
}

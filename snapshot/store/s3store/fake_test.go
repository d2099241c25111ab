package s3store_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
)

// fake is as much of an S3 server as the faults need that a real one doesn't have. Its ETags are numbers: nobody may take
// them for digests.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	objects  map[string]fakeObject
	puts     int
	page     int                                               // of a list
	seen     []*http.Request                                   // all that came, in order
	fault    func(w http.ResponseWriter, r *http.Request) bool // says whether it has answered
	credFile string
}

type fakeObject struct {
	body     []byte
	etag     string
	modified time.Time
}

func newFake(t *testing.T, start func(*httptest.Server)) *fake {
	t.Helper()
	f := &fake{objects: map[string]fakeObject{}, page: 1000, credFile: filepath.Join(t.TempDir(), "credentials")}
	if err := os.WriteFile(f.credFile, []byte("[default]\naws_access_key_id = somebody\naws_secret_access_key = verysecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Server = httptest.NewUnstartedServer(f)
	start(f.Server)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func plain(t *testing.T) *fake { return newFake(t, (*httptest.Server).Start) }

// open opens a store in the fake's bucket.
func (f *fake) open(t *testing.T, change func(*s3store.Config)) *s3store.Store {
	t.Helper()
	return openURL(t, "s3://bucket/some/prefix?region=us-east-1&endpoint="+f.URL+"&credentials="+f.credFile, change)
}

// impatient is for what never comes; whatever does come comes sooner.
func impatient(c *s3store.Config) {
	const soon = time.Second
	c.Timeouts = s3store.Timeouts{Answer: soon, Written: soon, Stall: soon, Page: soon}
}

// fail sets the fault.
func (f *fake) fail(fault func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// requests are those that came with a method, or with any, in order.
func (f *fake) requests(method string) []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.seen), func(r *http.Request) bool { return method != "" && r.Method != method })
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r)
	fault := f.fault
	f.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	f.serve(w, r)
}

// serve answers as a server does that nothing ails.
func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.URL.Path, "/bucket/")
	switch {
	case !ok:
		s3Error(w, 404, "NoSuchBucket")
	case r.Method == http.MethodGet && key == "":
		f.list(w, r)
	case r.Method == http.MethodGet:
		f.get(w, r, key)
	case r.Method == http.MethodPut:
		f.put(w, r, key)
	case r.Method == http.MethodDelete:
		f.mu.Lock()
		delete(f.objects, key)
		f.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		s3Error(w, 405, "MethodNotAllowed")
	}
}

func (f *fake) object(key string) (fakeObject, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, there := f.objects[key]
	return o, there
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, key string) {
	o, there := f.object(key)
	if !there {
		s3Error(w, 404, "NoSuchKey")
		return
	}
	w.Header().Set("ETag", `"`+o.etag+`"`)
	http.ServeContent(w, r, "", o.modified, bytes.NewReader(o.body))
}

func (f *fake) put(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o, there := f.objects[key]
	switch match := strings.Trim(r.Header.Get("If-Match"), `"`); {
	case r.Header.Get("If-None-Match") == "*" && there, match != "" && there && match != o.etag:
		s3Error(w, 412, "PreconditionFailed")
		return
	case match != "" && !there:
		s3Error(w, 404, "NoSuchKey")
		return
	}
	f.store(key, body)
	w.Header().Set("ETag", `"`+f.objects[key].etag+`"`)
}

// store puts an object there. The caller holds mu.
func (f *fake) store(key string, body []byte) {
	f.puts++
	f.objects[key] = fakeObject{body, fmt.Sprintf("tag-%d", f.puts), time.Now()}
}

type fakeList struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	Contents              []fakeEntry
}

type fakeEntry struct {
	Key, ETag    string
	Size         int
	LastModified string
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for key := range f.objects {
		if strings.HasPrefix(key, r.URL.Query().Get("prefix")) && key > r.URL.Query().Get("continuation-token") {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	var l fakeList
	for _, key := range names {
		if len(l.Contents) == f.page {
			l.IsTruncated, l.NextContinuationToken = true, l.Contents[f.page-1].Key
			break
		}
		o := f.objects[key]
		l.Contents = append(l.Contents, fakeEntry{key, `"` + o.etag + `"`, len(o.body), o.modified.UTC().Format(time.RFC3339)})
	}
	xml.NewEncoder(w).Encode(l)
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>said by the fake</Message></Error>", code)
}

// hangUp closes the connection with no answer.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.Close()
	}
}

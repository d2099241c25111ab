package cycles

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// answerTimeout bounds one answer, a wake included.
const answerTimeout = 30 * time.Second

// program is a server under test: what it says over a connection must show that its state went on.
type program struct {
	image string
	port  string
	ask   func(t *testing.T, c *conn)          // one exchange that checks state; the first one makes it
	extra func(t *testing.T, s *server) func() // more state to make, and to check after every wake
}

// conn is one client connection.
type conn struct {
	net.Conn
	in *bufio.Reader
	n  int // exchanges so far
}

// server is a program that runs.
type server struct {
	program
	world   *harness.World
	id      string
	address string
	http    *http.Client
}

func start(t *testing.T, w *harness.World, p program) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &server{program: p, world: w, id: p.image + "-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	if len(s.id) > 60 {
		s.id = s.id[:60]
	}
	if _, err := w.Run(ctx, harness.Container{ID: s.id, Image: p.image, CNI: true, Detach: true}); err != nil {
		t.Fatal(err)
	}
	ip, err := w.IP(ctx, s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.address = net.JoinHostPort(ip, p.port)
	s.http = w.HTTP()
	t.Cleanup(s.http.CloseIdleConnections)
	for {
		c, err := w.Dial(ctx, "tcp", s.address)
		if err == nil {
			c.Close()
			return s
		}
		if ctx.Err() != nil {
			t.Fatalf("%s does not listen: %v", p.image, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *server) dial(t *testing.T) *conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	c, err := s.world.Dial(ctx, "tcp", s.address)
	if err != nil {
		t.Fatalf("connect to %s: %v", s.image, err)
	}
	t.Cleanup(func() { c.Close() })
	return &conn{Conn: c, in: bufio.NewReader(c)}
}

func (c *conn) send(t *testing.T, format string, args ...any) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, format, args...); err != nil {
		t.Fatalf("send: %v", err)
	}
	c.n++
}

func (c *conn) line(t *testing.T) string {
	t.Helper()
	line, err := c.in.ReadString('\n')
	if err != nil {
		t.Fatalf("after %q: %v", line, err)
	}
	return strings.TrimRight(line, "\r\n")
}

// request is one HTTP exchange on this very connection.
func (c *conn) request(t *testing.T, path string) string {
	t.Helper()
	c.send(t, "GET %s HTTP/1.1\r\nHost: test\r\n\r\n", path)
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, r.Status, err)
	}
	return strings.TrimSpace(string(body))
}

// get is one HTTP exchange on whatever connection there is.
func (s *server) get(t *testing.T, method, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.http.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s, %v", method, path, response.Status, body, err)
	}
	return strings.TrimSpace(string(body))
}

var redis = program{image: "redis", port: "6379", ask: func(t *testing.T, c *conn) {
	c.send(t, "INCR hits\r\n")
	if got := c.line(t); !strings.HasPrefix(got, ":") {
		t.Fatalf("INCR: %q", got)
	}
	if c.n == 1 {
		c.send(t, "SET key value\r\n")
		c.line(t)
	}
	c.send(t, "GET key\r\n")
	if n, value := c.line(t), c.line(t); value != "value" {
		t.Fatalf("GET key: %q %q", n, value)
	}
}, extra: func(t *testing.T, s *server) func() {
	run := s.dial(t)
	id := run.info(t, "run_id")
	return func() {
		if now := s.dial(t).info(t, "run_id"); now != id {
			t.Fatalf("redis is another process: run_id %s was %s", now, id)
		}
	}
}}

// info reads one field of redis's INFO.
func (c *conn) info(t *testing.T, field string) string {
	t.Helper()
	c.send(t, "INFO server\r\n")
	var n int
	if _, err := fmt.Sscanf(c.line(t), "$%d", &n); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, n+2)
	if _, err := io.ReadFull(c.in, text); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value
		}
	}
	t.Fatalf("INFO has no %s", field)
	return ""
}

var nginx = program{image: "nginx", port: "80", ask: func(t *testing.T, c *conn) {
	if body := c.request(t, "/"); body == "" {
		t.Fatal("an empty page")
	}
}}

// python3's http.server closes each connection after one answer, so one exchange is a connection of its own; what is
// asked on an old connection is the request itself.
var python = program{image: "python3", port: "8000", ask: func(t *testing.T, c *conn) {
	if c.n > 0 {
		return
	}
	if body := c.request(t, "/"); !strings.Contains(body, "hello from python") {
		t.Fatalf("answer %.60q", body)
	}
}}

var testserver = program{image: "testserver", port: "8080", ask: func(t *testing.T, c *conn) {
	if got := c.request(t, "/"); got != "hello" {
		t.Fatalf("answer %q", got)
	}
}, extra: everyState}

// everyState makes each kind of state that sleep must keep, and returns a check of all of it.
func everyState(t *testing.T, s *server) func() {
	s.get(t, "POST", "/memory?mib=48")
	s.get(t, "POST", "/file/create?name=open&mib=2")
	s.get(t, "POST", "/mmap/create?name=map&mib=4")
	s.get(t, "POST", "/write?path=/tmp/a&mib=1")
	s.get(t, "POST", "/write?path=/var/b&mib=3")
	same := map[string]string{}
	for _, path := range []string{"/pid", "/memory", "/memory/sha256", "/mmap/sha256?name=map",
		"/sha256?path=/tmp/a", "/sha256?path=/var/b"} {
		same[path] = s.get(t, "GET", path)
	}
	file := field(t, s.get(t, "GET", "/file/sha256?name=open"), "sha256")
	counter, offset := 0, 0
	advance := func() {
		counter++
		if got := s.get(t, "POST", "/counter"); got != fmt.Sprint(counter) {
			t.Fatalf("counter is %s, want %d", got, counter)
		}
		offset += 4096
		if got := s.get(t, "POST", "/file/read?name=open&n=4096"); !strings.Contains(got, fmt.Sprint(offset)) {
			t.Fatalf("the open file's offset is %s, want %d", got, offset)
		}
	}
	advance()
	return func() {
		for path, want := range same {
			if got := s.get(t, "GET", path); got != want {
				t.Fatalf("%s is %s after the wake, was %s", path, got, want)
			}
		}
		if now := field(t, s.get(t, "GET", "/file/sha256?name=open"), "sha256"); now != file {
			t.Fatalf("the unlinked file is %s after the wake, was %s", now, file)
		}
		advance()
	}
}

// field reads one field of a JSON object.
func field(t *testing.T, object, name string) string {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(object), &fields); err != nil {
		t.Fatalf("%q: %v", object, err)
	}
	return fmt.Sprint(fields[name])
}

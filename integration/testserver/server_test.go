package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A client talks to a server of the test's own, on free ports.
type client struct {
	t *testing.T
	l listeners
}

func start(t *testing.T) client {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	const free = "127.0.0.1:0"
	l, err := listen(addresses{free, free, free, free, free, free})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- newServer().serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
	})
	return client{t, l}
}

func (c client) url(path string) string { return "http://" + c.l.http.Addr().String() + path }

// call makes a request that must succeed and returns the body.
func (c client) call(method, path string, body io.Reader) string {
	c.t.Helper()
	req, err := http.NewRequest(method, c.url(path), body)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s %s: %v, %v: %s", method, path, resp.Status, err, b)
	}
	return strings.TrimSpace(string(b))
}

func get[T any](c client, path string) (v T) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.call("GET", path, nil)), &v); err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
	return v
}

func TestCounterAndMemory(t *testing.T) {
	c := start(t)
	if got := c.call("POST", "/counter", nil) + c.call("POST", "/counter", nil) + c.call("GET", "/counter", nil); got != "122" {
		t.Errorf("POST, POST, GET /counter = %s; want 1, 2, 2", got)
	}
	c.call("POST", "/memory?mib=3", nil)
	sum := c.call("GET", "/memory/sha256", nil)
	if again := c.call("GET", "/memory/sha256", nil); again != sum || len(sum) != 64 {
		t.Errorf("checksum of the memory = %q, then %q; want the same", sum, again)
	}
	c.call("POST", "/memory?mib=2", nil)
	if got := c.call("GET", "/memory", nil); got != "2" {
		t.Errorf("GET /memory = %s; want 2", got)
	}
	if c.call("GET", "/memory/sha256", nil) == sum {
		t.Error("the checksum stayed while the memory changed")
	}
}

func TestOpenUnlinkedFile(t *testing.T) {
	c := start(t)
	made := get[place](c, "/file/create?name=a&mib=2")
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("%d names are left, %v; want the file unlinked", len(left), err)
	}
	first := get[place](c, "/file/read?name=a&n=1000")
	second := get[place](c, "/file/read?name=a&n=1000")
	if first.Offset != 1000 || second.Offset != 2000 || first.SHA256 == second.SHA256 {
		t.Errorf("two reads = %+v, %+v; want them one after the other", first, second)
	}
	if all := get[place](c, "/file/sha256?name=a"); all.SHA256 != made.SHA256 || all.Offset != 2000 {
		t.Errorf("whole file = %+v; want checksum %s and offset 2000", all, made.SHA256)
	}
	if resp, err := http.Get(c.url("/file/read?name=b&n=1")); err != nil || resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("reading an unknown file = %v, %v; want an error status", resp, err)
	}
}

func TestMappingAndWrittenFile(t *testing.T) {
	c := start(t)
	made := get[total](c, "/mmap/create?name=m&mib=1")
	if got := get[total](c, "/mmap/sha256?name=m"); got != made || got.Bytes != mebibyte {
		t.Errorf("mapping = %+v; want %+v", got, made)
	}
	path := filepath.Join(os.TempDir(), "w")
	written := get[total](c, "/write?mib=2&path="+path)
	if got := get[total](c, "/sha256?path="+path); got != written || got.Bytes != 2*mebibyte {
		t.Errorf("file = %+v; want %+v", got, written)
	}
}

func TestBytesAndUpload(t *testing.T) {
	c := start(t)
	if got := c.call("GET", "/bytes?n=200000", nil); len(got) != 200000 {
		t.Errorf("/bytes?n=200000 gave %d bytes", len(got))
	}
	body := bytes.Repeat([]byte("upload"), 50000)
	var got total
	if err := json.Unmarshal([]byte(c.call("POST", "/upload", bytes.NewReader(body))), &got); err != nil {
		t.Fatal(err)
	}
	if want := (total{int64(len(body)), fmt.Sprintf("%x", sha256.Sum256(body))}); got != want {
		t.Errorf("upload = %+v; want %+v", got, want)
	}
}

func dial(t *testing.T, a net.Addr) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout(a.Network(), a.String(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

func TestLineEchoCountsEveryByte(t *testing.T) {
	c := start(t)
	conn := dial(t, c.l.echo.Addr())
	const sent = "one\ntwo\nand a rest"
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != sent {
		t.Errorf("echo = %q, %v; want what was sent", got, err)
	}
	all := get[echoTotal](c, "/echo/total")
	mine := all.Connections[conn.LocalAddr().String()]
	if all.Bytes != int64(len(sent)) || mine.Lines != 2 || mine.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte(sent))) {
		t.Errorf("account = %+v; want %d bytes, 2 lines and their checksum", all, len(sent))
	}
}

func TestServerSpeaksFirstAndUDP(t *testing.T) {
	c := start(t)
	conn := dial(t, c.l.greet.Addr())
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != greeting {
		t.Errorf("first line = %q, %v; want %q", line, err, greeting)
	}
	udp := dial(t, c.l.udp.LocalAddr())
	fmt.Fprint(udp, "ping")
	answer := make([]byte, 16)
	if n, err := udp.Read(answer); err != nil || string(answer[:n]) != "ping" {
		t.Errorf("UDP echo = %q, %v; want ping", answer[:n], err)
	}
}

// TestBeat: a witness is told one after the other, and what the counter has.
func TestBeat(t *testing.T) {
	witness, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Close()
	s := newServer()
	s.counter.n.Store(7)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.beat(ctx, witness.LocalAddr().String()) }()
	first := ""
	for want := 1; want < 4; want++ {
		b := make([]byte, 100)
		witness.SetReadDeadline(time.Now().Add(10 * time.Second))
		size, _, err := witness.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		nonce, rest, _ := strings.Cut(string(b[:size]), " ")
		if first == "" {
			first = nonce
		}
		if len(nonce) != 16 || nonce != first || rest != fmt.Sprintf("%d 7", want) {
			t.Errorf("packet %d is %q, of %s", want, b[:size], first)
		}
	}
	cancel()
	<-done
}

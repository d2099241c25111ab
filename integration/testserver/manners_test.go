package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The server ends a connection as its client says, and tells how the client ended it.
func TestManners(t *testing.T) {
	c := start(t)
	for _, test := range []struct {
		command string
		end     error // as the client sees it, after the echo of the command
	}{{"half", io.EOF}, {"close", io.EOF}, {"reset", syscall.ECONNRESET}} {
		conn, in := c.greeted(test.command)
		if _, err := in.ReadByte(); !errors.Is(err, test.end) {
			t.Errorf("%s: %v", test.command, err)
		}
		conn.Close()
	}
	conn, _ := c.greeted("listen")
	if _, err := io.WriteString(conn, "five!"); err != nil {
		t.Fatal(err)
	}
	for c.guest(conn).Bytes < 5 {
		time.Sleep(time.Millisecond)
	}
	conn.SetLinger(0)
	conn.Close()
	for c.guest(conn).End == "open" {
		time.Sleep(time.Millisecond)
	}
	if got := c.guest(conn); got.End != "reset" || got.Bytes != 5 {
		t.Errorf("%+v", got)
	}
	conn, _ = c.greeted("deaf")
	if _, err := io.WriteString(conn, "later"); err != nil {
		t.Fatal(err)
	}
	conn.CloseWrite()
	if got := c.guest(conn); got.Bytes != 0 || got.End != "open" {
		t.Errorf("deaf: %+v", got)
	}
	c.call("POST", "/manners/read", nil)
	for c.guest(conn).End == "open" {
		time.Sleep(time.Millisecond)
	}
	if got := c.guest(conn); got.End != "eof" || got.Bytes != 5 {
		t.Errorf("deaf, later: %+v", got)
	}
	conn.Close()
}

func (c client) greeted(command string) (*net.TCPConn, *bufio.Reader) {
	c.t.Helper()
	conn, err := net.Dial("tcp", c.l.manners.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		c.t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); line != command+"\n" {
		c.t.Fatal(line, err)
	}
	return conn.(*net.TCPConn), in
}

func (c client) guest(conn net.Conn) (g guestEnd) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.call("GET", "/manners?peer="+conn.LocalAddr().String(), nil)), &g); err != nil {
		c.t.Fatal(err)
	}
	return g
}

// Behind TLS a client gets HTTP/2, and answers while it still speaks.
func TestTalk(t *testing.T) {
	c := start(t)
	web := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer web.CloseIdleConnections()
	in, out := io.Pipe()
	defer out.Close()
	r, err := web.Post("https://"+c.l.tls.Addr().String()+"/talk", "text/plain", in)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.ProtoMajor != 2 {
		t.Error(r.Proto)
	}
	answers := bufio.NewReader(r.Body)
	for range 3 {
		if _, err := io.WriteString(out, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := answers.ReadString('\n'); strings.TrimSpace(line) != "hello" {
			t.Fatal(line, err)
		}
	}
}

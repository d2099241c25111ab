package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"
)

// answerTimeout bounds one answer, the wake included.
const answerTimeout = 30 * time.Second

// redis is a client of a few lines: what the demo says is seen to be nothing special.
type redis struct {
	conn net.Conn
	in   *bufio.Reader
}

func newRedis(conn net.Conn) *redis { return &redis{conn: conn, in: bufio.NewReader(conn)} }

// do sends one command and returns its answer: a simple string, an integer as text, or a bulk string.
func (r *redis) do(args ...string) (string, error) {
	if err := r.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(r.conn, "%s\r\n", strings.Join(args, " ")); err != nil {
		return "", err
	}
	line, err := r.in.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("redis %s: %w", args[0], err)
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[0] {
	case '+', ':':
		return line[1:], nil
	case '$':
		if line == "$-1" {
			return "", fmt.Errorf("redis %s: no such key", strings.Join(args, " "))
		}
		value, err := r.in.ReadString('\n')
		return strings.TrimRight(value, "\r\n"), err
	}
	return "", fmt.Errorf("redis %s: %s", args[0], line)
}

package network

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// OpenSSH's client logs in to a sleeper, and its sessions outlive sleeps in which nobody types.
func TestSSH(t *testing.T) {
	const port = 22
	s := run(t, true, nil, port, harness.Container{Image: "ssh"})
	key, err := s.world.Exec(s.ctx(), id, "cat", "/etc/ssh/test_key")
	s.must(err)
	file := filepath.Join(t.TempDir(), "key")
	s.must(os.WriteFile(file, []byte(key), 0o600))
	ssh := func(command string) *exec.Cmd {
		return s.world.Command(s.ctx(), "nsenter", "--net=/run/netns/client", "ssh", "-F", "none", "-T", "-q", "-i", file,
			"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "root@"+s.pod.IP, command)
	}
	before := s.sleep()
	out, err := ssh("echo $SSH_CONNECTION").Output()
	if client := s.world.ClientIP(); err != nil || !strings.HasPrefix(string(out), client+" ") {
		t.Fatalf("logged in from %q, not %s: %v", out, client, err)
	}
	s.woken(before, "connection")
	before = s.sleep()
	held := session(t, ssh("cat"))
	s.must(held("held"))
	s.woken(before, "connection")
	direct := session(t, ssh("cat"))
	s.must(direct("direct"))
	for range 2 {
		for _, say := range []func(string) error{held, direct} {
			before := s.sleep()
			s.must(say("through sleep"))
			s.woken(before, "packet")
		}
	}
}

// session says lines to a program that says them back; it ends with the test.
func session(t *testing.T, cmd *exec.Cmd) (say func(line string) error) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(out)
	return func(line string) error {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			return err
		}
		got, err := lineOf(lines)
		if err == nil && got != line {
			err = fmt.Errorf("heard %q, not %q", got, line)
		}
		return err
	}
}

// A mail server greets who wakes it, and takes a mail in a session that began before it slept.
func TestSMTP(t *testing.T) {
	const port = 25
	s := run(t, true, nil, port, harness.Container{Image: "smtp"})
	before := s.sleep()
	c, err := smtp.NewClient(s.dial(port), "mail.test") // when it has been greeted
	s.must(err)
	s.must(c.Hello("client.test"))
	s.woken(before, "connection")
	before = s.sleep()
	s.must(c.Mail("bob@client.test"))
	s.woken(before, "packet")
	s.must(c.Rcpt("alice@mail.test"))
	w, err := c.Data()
	s.must(err)
	_, err = io.WriteString(w, "Subject: hello\r\n\r\nthrough sleep\r\n")
	s.must(err)
	before = s.sleep()
	s.must(w.Close())
	s.woken(before, "packet")
	eventually(t, "the mail is kept", func() bool {
		out, err := s.world.Exec(s.ctx(), id, "sh", "-c", "cat /tmp/alice/new/* 2>/dev/null || true")
		s.must(err)
		return strings.Contains(out, "\nthrough sleep\n")
	})
	s.must(c.Quit())
}

// MariaDB greets who wakes it, and what belongs to a connection alone is there after sleeps.
func TestMariaDB(t *testing.T) {
	const port = 3306
	s := run(t, true, nil, port, harness.Container{Image: "mariadb"})
	before := s.sleep()
	held := s.logIn(s.dial(port))
	s.woken(before, "connection")
	s.must(held.query("CREATE DATABASE IF NOT EXISTS test", ""))
	s.must(held.query("CREATE TABLE test.kept (v INT) ENGINE=InnoDB", ""))
	s.must(held.query("INSERT INTO test.kept VALUES (42)", ""))
	s.must(held.query("SET @mine := 'held'", ""))
	direct := s.logIn(s.dial(port))
	s.must(direct.query("SET @mine := 'direct'", ""))
	for name, c := range map[string]*sql{"held": held, "direct": direct} {
		before := s.sleep()
		s.must(c.query("SELECT @mine", name))
		s.woken(before, "packet")
		s.must(c.query("SELECT v FROM test.kept", "42"))
	}
}

// sql is a connection to MariaDB, as its protocol's documentation has it.
type sql struct {
	conn net.Conn
	in   *bufio.Reader
	next byte // the sequence number
}

// logIn waits for the greeting, and answers as root, who has no password.
func (s *server) logIn(conn net.Conn) *sql {
	s.t.Helper()
	c := &sql{conn: conn, in: bufio.NewReader(conn)}
	greeting, err := c.read()
	s.must(err)
	if !bytes.Contains(greeting, []byte("MariaDB")) {
		s.t.Fatalf("greeted with %q", greeting)
	}
	const protocol41, secure = 0x200, 0x8000
	login := append([]byte{protocol41 & 0xff, (protocol41 | secure) >> 8, 0, 0, 0, 0, 0, 1, 33}, make([]byte, 23)...)
	s.must(c.write(append(login, "root\x00\x00"...)))
	answer, err := c.read()
	s.must(err)
	if answer[0] != 0 {
		s.t.Fatalf("login: %q", answer)
	}
	return c
}

// query wants a result of one value, or "" for none.
func (c *sql) query(text, want string) error {
	c.next = 0
	if err := c.write(append([]byte{3}, text...)); err != nil {
		return err
	}
	answer, err := c.read()
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if want == "" && answer[0] == 0 {
		return nil
	}
	if answer[0] != 1 {
		return fmt.Errorf("%s: %q", text, answer)
	}
	var packets [][]byte // what the column is, an end, the row, an end
	for range 4 {
		p, err := c.read()
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		packets = append(packets, p)
	}
	if row := packets[2]; string(row[1:]) != want {
		return fmt.Errorf("%s: %q, not %q", text, row[1:], want)
	}
	return nil
}

func (c *sql) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	c.next = head[3] + 1
	p := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	if len(p) == 0 {
		return nil, fmt.Errorf("an empty packet")
	}
	_, err := io.ReadFull(c.in, p)
	return p, err
}

func (c *sql) write(p []byte) error {
	_, err := c.conn.Write(append([]byte{byte(len(p)), byte(len(p) >> 8), byte(len(p) >> 16), c.next}, p...))
	return err
}

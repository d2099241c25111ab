// Package drain tests nodes that are emptied, stopped and booted again: what can be kept is, and goes on where it was.
package drain

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

const (
	limit = 60 * time.Second // of one command
	mib   = 16

	metrics = "127.0.0.1:9476" // of the world's own
)

type node struct {
	*harness.World
	t *testing.T
}

func newNode(t *testing.T) *node {
	t.Helper()
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{
		"mode": `"manual"`, "min-awake": `"0s"`, "metrics-address": strconv.Quote(metrics),
	}})
	return &node{w, t}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// ctl runs hibernatectl, and wants an exit code. It returns what was printed, on standard error too when it failed.
func (n *node) ctl(code int, args ...string) string {
	n.t.Helper()
	out, err := n.Output(n.context(), "sh", append([]string{"-c", `exec "$0" "$@" 2>&1`, n.Program("hibernatectl"), "--config", n.ConfigFile()}, args...)...)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		n.must(err)
	}
	if got != code {
		n.t.Fatalf("%v: exit code %d, want %d:\n%s", args, got, code, out)
	}
	return out
}

func (n *node) says(text string, words ...string) {
	n.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			n.t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

// server names a server in a pod of its own, which goes with the test, or with the machine.
func (n *node) server(id string) *known.Server {
	n.t.Helper()
	s := known.New(n.t, n.World, id, n.pod(id))
	n.t.Cleanup(func() {
		s.HangUp()
		n.must(n.RemovePod(n.context(), s.Pod))
	})
	return s
}

func (n *node) pod(id string) harness.Pod {
	n.t.Helper()
	pod, err := n.NewPod(n.context(), id)
	n.must(err)
	return pod
}

func (n *node) state(s *known.Server, want string) {
	n.t.Helper()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	if got := now.GetState(); got != want {
		n.t.Errorf("%s is %s, want %s: %v", s.ID, got, want, now.GetLastHibernate())
	}
}

// scrape asks the daemon over HTTP.
func (n *node) scrape(path string) string {
	n.t.Helper()
	c := http.Client{Timeout: limit, Transport: &http.Transport{DialContext: n.DialNode, DisableKeepAlives: true}}
	r, err := c.Get("http://" + metrics + path)
	n.must(err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	n.must(err)
	return string(text)
}

// ask makes a request over a connection that stays open.
func (n *node) ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /pid HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return err
	}
	_, err := http.ReadResponse(bufio.NewReader(c), nil) // its few bytes come in one piece
	return err
}

func quiet() harness.Container { return harness.Container{Flags: []string{"--null-io"}} }

// TestDrain: all that can sleep does, whoever can't is named; what sleeps is woken by request alone until the node is uncordoned, through a
// restart of the daemon; and who has waited then is served.
func TestDrain(t *testing.T) {
	n := newNode(t)
	web, busy := n.server("web"), n.server("busy")
	web.Start(quiet(), mib)
	busy.Start(quiet(), mib)
	_, err := n.Run(n.context(), harness.Container{ID: "host", Image: "testserver", Host: true, Detach: true, Flags: []string{"--null-io"}})
	n.must(err)
	n.ctl(0, "lease", "take", "busy", "work", "--for", "1h")

	line, err := n.Dial(n.context(), "tcp", web.Address(8080)) // that is open all the while
	n.must(err)
	defer line.Close()
	n.must(n.ask(line))

	out := n.ctl(4, "drain")
	n.says(out, "/web: asleep (", "/busy: kept awake: ", "[lease]", "/host: kept awake: ", "[host-network]", "3 workloads, 1 done, 2 not")
	n.state(web, "asleep")
	out = n.ctl(4, "drain", "--force")
	n.says(out, "/web: asleep already", "/busy: asleep (", "3 workloads, 2 done, 1 not")
	n.says(n.ctl(0, "ls"), "note: the node is cordoned since ", "(drain)")

	asked := make(chan error, 1)
	go func() { asked <- n.ask(line) }() // a packet, and its repetitions
	answer := make(chan error, 1)
	go func() { _, err := web.Try("GET", "/pid"); answer <- err }()
	known.Eventually(t, "it is told what the wake waits for", func() bool {
		return strings.Contains(n.ctl(0, "inspect", "web"), "hibernatectl uncordon")
	})
	n.must(n.Daemon.Stop(n.context()))
	n.must(n.Daemon.Start(n.context()))
	known.Eventually(t, "the next daemon knows of it", func() bool {
		return strings.Contains(n.ctl(0, "inspect", "web"), "hibernatectl uncordon")
	})
	n.says(n.scrape("/metrics"), "hibernate_cordoned 1")
	n.says(n.scrape("/healthz"), "ok\nthe node is cordoned since ")
	n.state(web, "asleep")
	if s, err := n.Status(n.context(), "web"); err != nil || s.GetWakes() > 0 {
		t.Errorf("it has been woken: %v, %v", s.GetLastWake(), err)
	}
	n.ctl(0, "wake", "busy") // by request
	busy.GoesOn()
	n.ctl(0, "lease", "release", "busy", "work")
	busy.Sleep()

	n.says(n.ctl(0, "uncordon"), "no longer cordoned")
	n.must(<-answer)
	n.must(<-asked)
	web.GoesOn()
	busy.GoesOn()
}

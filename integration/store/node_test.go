// Package store tests what comes of sleepers' snapshots in the durable tier: a real containerd, a real daemon, and a real S3 server
// or a directory.
package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// limit bounds one command.
const limit = 40 * time.Second

// node is a world whose daemon has a store.
type node struct {
	*harness.World
	t       *testing.T
	base    string // the configuration without the store
	metrics string
}

func newNode(t *testing.T) *node {
	t.Helper()
	const metrics = "127.0.0.1:9476" // of the world's own
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{
		"mode": `"manual"`, "min-awake": `"0s"`, "metrics-address": strconv.Quote(metrics),
	}})
	base, err := os.ReadFile(w.ConfigFile())
	n := &node{World: w, t: t, base: string(base), metrics: metrics}
	n.must(err)
	t.Cleanup(n.forget)
	return n
}

// forget removes what the daemon remembers of what is in the store, and keeps when the containers are gone.
func (n *node) forget() {
	n.must(n.RemoveAll(n.context()))
	if err := n.Daemon.Stop(n.context()); err != nil && !errors.Is(err, harness.ErrNotRunning) {
		n.t.Error(err)
	}
	n.must(os.RemoveAll(filepath.Join(n.DataDir(), ".durable")))
}

// configure gives the daemon, which doesn't run, a store.
func (n *node) configure(settings map[string]string) {
	n.t.Helper()
	text := n.base
	for k, v := range settings {
		text += k + " = " + v + "\n"
	}
	n.must(os.WriteFile(n.ConfigFile(), []byte(text), 0o600))
}

// restart starts the daemon anew, with another store.
func (n *node) restart(settings map[string]string) {
	n.t.Helper()
	if err := n.Daemon.Stop(n.context()); err != nil && !errors.Is(err, harness.ErrNotRunning) {
		n.t.Fatal(err)
	}
	n.configure(settings)
	n.must(n.Daemon.Start(n.context()))
}

// key writes a key file of so many equal bytes.
func (n *node) key(name string) string {
	n.t.Helper()
	path := filepath.Join(n.Dir, name+".key")
	n.must(os.WriteFile(path, bytes.Repeat([]byte(name[:1]), 32), 0o600))
	return path
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

// server runs a test server in a pod of its own.
func (n *node) server(id string, mib int) *known.Server {
	n.t.Helper()
	return n.annotated(id, mib, nil)
}

// annotated is server with annotations.
func (n *node) annotated(id string, mib int, annotations map[string]string) *known.Server {
	n.t.Helper()
	pod, err := n.NewPod(n.context(), id)
	n.must(err)
	n.t.Cleanup(func() { n.must(n.RemovePod(n.context(), pod)) })
	s := known.New(n.t, n.World, id, pod)
	s.Start(harness.Container{Annotations: annotations, Flags: []string{"--null-io"}}, mib)
	return s
}

// ctl runs hibernatectl and wants an exit status.
func (n *node) ctl(code int, args ...string) string {
	n.t.Helper()
	out, err := n.tryCtl(code, args...)
	n.must(err)
	return out
}

func (n *node) tryCtl(code int, args ...string) (string, error) {
	cmd := n.Command(n.context(), "hibernatectl", append([]string{"--config", n.ConfigFile()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return "", err
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		return "", fmt.Errorf("hibernatectl %s: status %d, want %d\n%s%s", strings.Join(args, " "), got, code, &out, &errs)
	}
	return out.String() + errs.String(), nil
}

// copies are the places that ls tells for a workload.
func (n *node) copies(id string) string {
	n.t.Helper()
	for line := range strings.Lines(n.ctl(0, "ls")) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == id {
			return placesPattern.FindString(line)
		}
	}
	return ""
}

var placesPattern = regexp.MustCompile(`(local \d+(, store \d+)?|store \d+)( \([^)]*\))?`)

// stored waits until the store has a sequence of a workload's.
func (n *node) stored(id string, sequence int) {
	n.t.Helper()
	want := fmt.Sprintf("local %d, store %d", sequence, sequence)
	// On a busy machine uploads take what little is left.
	for deadline := time.Now().Add(4 * limit); ; time.Sleep(50 * time.Millisecond) {
		if got := n.copies(id); got == want {
			return
		} else if time.Now().After(deadline) {
			n.t.Fatalf("%s: %q, want %q\n%s", id, got, want, n.Daemon.LogTail(4000))
		}
	}
}

// inspected waits until inspect says all words.
func (n *node) inspected(id string, words ...string) {
	n.t.Helper()
	var out string
	known.Eventually(n.t, fmt.Sprintf("inspect says %q", words), func() bool {
		out = n.ctl(0, "inspect", id)
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(out, w) })
	})
}

// generation is what snapshots ls -o json tells of one.
type generation struct {
	Sequence string
	Sent     string `json:"sent_bytes"`
	Image    string `json:"image_bytes"`
}

func (g generation) sent() int {
	v, _ := strconv.Atoi(g.Sent)
	return v
}

// generations of a workload, the newest first.
func (n *node) generations(name string) []generation {
	n.t.Helper()
	var list struct {
		Lineages []struct {
			Error       string
			Epoch       string
			Generations []generation
		}
	}
	out := n.ctl(0, "-o", "json", "snapshots", "ls", name)
	n.must(json.Unmarshal([]byte(out), &list))
	if len(list.Lineages) != 1 || list.Lineages[0].Error != "" || list.Lineages[0].Epoch != "1" {
		n.t.Fatalf("%s: %s", name, out)
	}
	return list.Lineages[0].Generations
}

// scrape reads a page of the daemon's.
func (n *node) scrape(page string) string {
	n.t.Helper()
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: n.DialNode, DisableKeepAlives: true}}
	r, err := client.Get("http://" + n.metrics + page)
	n.must(err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	n.must(err)
	return string(text)
}

// metric is a sample's value.
func (n *node) metric(name string) float64 {
	n.t.Helper()
	for line := range strings.Lines(n.scrape("/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			n.must(err)
			return v
		}
	}
	n.t.Fatalf("no metric %s", name)
	return 0
}

func (n *node) says(text string, words ...string) {
	n.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			n.t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

// Package ctl drives hibernatectl, the program, against real shims, with the daemon and without.
package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// limit bounds one command, a wake included.
const limit = 30 * time.Second

type node struct {
	*harness.World
	t *testing.T
}

func (n *node) on(t *testing.T) *node { return &node{n.World, t} }

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// ctl runs hibernatectl and checks its status.
func (n *node) ctl(code int, args ...string) (stdout, stderr string) {
	n.t.Helper()
	cmd := n.Command(n.context(), "hibernatectl", append([]string{"--config", n.ConfigFile()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		n.t.Errorf("hibernatectl %s: status %d, want %d\n%s%s", strings.Join(args, " "), got, code, &out, &errs)
	}
	return out.String(), errs.String()
}

// object runs hibernatectl -o json.
func (n *node) object(args ...string) map[string]any {
	n.t.Helper()
	out, _ := n.ctl(0, append([]string{"-o", "json"}, args...)...)
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		n.t.Fatalf("%s: %v in %s", strings.Join(args, " "), err, out)
	}
	return v
}

// at follows names into objects.
func at(v any, names ...string) any {
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func (n *node) says(text string, words ...string) {
	n.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			n.t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

// columns are a listing's fields in the line of an id, by their titles.
func (n *node) columns(id string) map[string]string {
	n.t.Helper()
	out, _ := n.ctl(0, "ls")
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return slices.Contains(strings.Fields(l), id) })
	if i < 1 {
		n.t.Fatalf("%s is not listed:\n%s", id, out)
	}
	fields, head := map[string]string{}, lines[0]
	titles := []string{"NAMESPACE", "ID", "STATE", "IDLE", "SLEEPS IN", "MEMORY", "SNAPSHOT", "COPIES", "WAKES", "PORTS", "AGE"}
	for j, title := range titles {
		from, to := strings.Index(head, title), len(lines[i])
		if j+1 < len(titles) {
			to = strings.Index(head, titles[j+1])
		}
		if from < 0 || to > len(lines[i]) || to < from {
			n.t.Fatalf("column %s of:\n%s", title, out)
		}
		fields[title] = strings.TrimSpace(lines[i][from:to])
	}
	return fields
}

// asleep puts a workload to sleep; the tail of a connection may abort it.
func (n *node) asleep(id string) string {
	n.t.Helper()
	if _, err := n.Sleep(n.context(), id); err != nil {
		n.t.Fatal(err)
	}
	out, _ := n.ctl(0, "hibernate", id) // of one that sleeps: at once
	return out
}

func (n *node) greeted(id string) {
	n.t.Helper()
	ip, err := n.IP(n.context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	conn, err := n.Dial(n.context(), "tcp", net.JoinHostPort(ip, "7001"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	greeting := make([]byte, 3)
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "220" {
		n.t.Fatalf("greeting %q, %v", greeting, err)
	}
}

func TestCommands(t *testing.T) {
	n := &node{harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"min-awake": `"0s"`}}), t}
	if out, _ := n.ctl(0, "ls"); strings.Count(out, "\n") != 1 {
		t.Errorf("an empty node lists:\n%s", out)
	}
	for _, c := range []harness.Container{{ID: "web", CNI: true}, {ID: "web-2", CNI: true}, {ID: "lone", Args: []string{"sleep", "1000"}}} {
		c.Image, c.Detach = "testserver", true
		if _, err := n.Run(n.context(), c); err != nil {
			t.Fatal(err)
		}
	}
	n.greeted("web")
	t.Run("with a daemon", func(t *testing.T) { commands(n.on(t), true) })
	if err := n.Daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Run("without a daemon", func(t *testing.T) { commands(n.on(t), false) })
	t.Run("wrong", func(t *testing.T) { wrong(n.on(t)) })
	t.Run("export-rootfs", func(t *testing.T) { testExport(t, n.on(t)) })
}

func commands(n *node, daemon bool) {
	t := n.t
	awake := n.columns("web")
	if !strings.HasPrefix(awake["STATE"], "awake ") || !strings.HasSuffix(awake["MEMORY"], "MiB") || awake["AGE"] == "-" {
		t.Errorf("awake: %v", awake)
	}
	if daemon == (awake["IDLE"] == "-") {
		t.Errorf("daemon %t: idle %s", daemon, awake["IDLE"])
	}
	n.says(n.asleep("web"), n.Name+"/web is asleep", "snapshot", "ms")
	asleep := n.columns("web")
	if !strings.HasPrefix(asleep["STATE"], "asleep ") || asleep["PORTS"] != "7000,7001,8080" || !strings.HasSuffix(asleep["SNAPSHOT"], "MiB") {
		t.Errorf("asleep: %v", asleep)
	}
	out, _ := n.ctl(0, "inspect", "web")
	gate := "held"
	if !daemon {
		gate = "parked"
	}
	n.says(out, "asleep", gate, "Last hibernation", "checkpoint", "verify", "idle-timeout", "Ports:", "runsc:")
	if object := n.object("inspect", "web"); at(object, "status", "state") != "asleep" {
		t.Errorf("inspect -o json: %v", object)
	}
	out, _ = n.ctl(0, "why-awake", "web")
	n.says(out, "is not awake: it is asleep")

	out, _ = n.ctl(0, "wake", "--wait", "web")
	n.says(out, n.Name+"/web is awake (restored in ")
	n.greeted("web")
	out, _ = n.ctl(0, "wake", "web") // again
	n.says(out, "is awake")
	for deadline := time.Now().Add(limit); !strings.Contains(out, "accepts") && time.Now().Before(deadline); { // the ladder is climbed beside the traffic
		out, _ = n.ctl(0, "inspect", "web")
	}
	n.says(out, "Last wake", "restored", "boot", "restore", "HEALTH", "netstack", "accepts", "ok")
	out, _ = n.ctl(0, "why-awake", "web")
	if daemon {
		n.says(out, "is awake, and sleeps in", "mode auto")
		n.namesTheUser("web")
	} else {
		n.says(out, "hibernated is not running", "[no-daemon]")
	}
	leases(n)
	settings, _ := at(n.object("inspect", "web"), "status", "settings").([]any)
	if len(settings) == 0 {
		t.Error("inspect tells no settings")
	}
	for _, s := range settings {
		if key := at(s, "key"); key == "poll-interval" || key == "metrics-address" {
			t.Errorf("inspect tells of %v, which is hibernated's", key)
		}
	}
	if image := at(n.object("inspect", "web"), "status", "image"); image != nil {
		t.Errorf("ctr tells no image, inspect has %q", image)
	}
	versions := n.object("version")
	if at(versions, "hibernatectl") == nil || (at(versions, "hibernated", "version") == nil) == daemon {
		t.Errorf("versions: %v", versions)
	}
	list, _ := n.object("ls")["workloads"].([]any)
	if len(list) != 3 || at(list[1], "status", "id") != "web" || at(list[1], "status", "runsc_version") == "" {
		t.Errorf("ls -o json: %v", list)
	}
}

// leases keep a workload awake until the last is released.
func leases(n *node) {
	n.ctl(0, "lease", "take", "web", "backup", "--for", "1h")
	out, _ := n.ctl(0, "lease", "take", n.Name+"/web", "debug", "--for", "30m")
	n.says(out, "backup", "59m", "debug", "29m")
	_, errs := n.ctl(4, "hibernate", "web")
	n.says(errs, `lease "backup" keeps it awake [lease]`)
	_, errs = n.ctl(3, "lease", "release", "web", "nightly")
	n.says(errs, `no lease "nightly"; there is backup, debug`)
	n.ctl(0, "lease", "release", "web", "backup")
	list, _ := n.object("lease", "ls", "web")["leases"].([]any)
	if len(list) != 1 || at(list[0], "name") != "debug" {
		n.t.Errorf("leases: %v", list)
	}
	n.ctl(0, "lease", "release", "web", "debug")
	if out, _ = n.ctl(0, "lease", "ls", "web"); strings.Count(out, "\n") != 1 {
		n.t.Errorf("leases after their release:\n%s", out)
	}
}

func wrong(n *node) {
	_, errs := n.ctl(2, "frob")
	n.says(errs, `unknown command "frob"`)
	_, errs = n.ctl(2, "wake")
	n.says(errs, "one workload is wanted")
	_, errs = n.ctl(2, "ls", "-o", "yaml")
	n.says(errs, "yaml")
	_, errs = n.ctl(3, "wake", "nobody")
	n.says(errs, `no workload "nobody"`, n.Name+"/web")
	_, errs = n.ctl(3, "wake", "other/web")
	n.says(errs, "other/web")
	n.ctl(0, "wake", "lo") // the only one that begins so
	_, errs = n.ctl(3, "wake", "we")
	n.says(errs, "ambiguous", "web-2")
	if _, err := n.Ctr(n.context(), "tasks", "pause", "web"); err != nil {
		n.t.Fatal(err)
	}
	_, errs = n.ctl(4, "hibernate", "web")
	n.says(errs, "can't hibernate", "paused the container [paused]")
	if strings.Count(errs, "\n") != 1 {
		n.t.Errorf("more than one line: %s", errs)
	}
	if _, err := n.Ctr(n.context(), "tasks", "resume", "web"); err != nil {
		n.t.Fatal(err)
	}
	cmd := n.Command(n.context(), "hibernatectl", "--run-dir", n.Dir+"/nothing", "ls")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Errorf("a run-dir that isn't there: %v: %s", err, out)
	}
}

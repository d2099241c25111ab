package cri

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Two servers in one pod, each with its memory, its log and its mounts: what is asked of one awake and asleep, what becomes of the other, and how one of
// them ends, is made anew and is killed while the pod goes on.
func TestContainers(t *testing.T) {
	n := newNode(t, "pause")
	for name, test := range map[string]func(*node){
		"two": testTwo, "ends": testEnds, "ended-asleep": testEndedAsleep, "restart": testRestart, "volumes": testVolumes, "identity": testIdentityOfTwo, "killed-shim": testKilledShim,
	} {
		t.Run(name, func(t *testing.T) { test(&node{n.World, t, n.config}) })
	}
}

// podOf is a pod of two servers.
type podOf struct {
	*node
	id, config, ip  string
	server, sidecar string

	made int // containers that were; numbers the attempts
}

const (
	serverPort  = 8080
	sidecarPort = 8081
)

// elsewhere are a second server's arguments.
var elsewhere = []string{"/usr/bin/testserver", "-http", ":8081", "-echo", ":7100", "-greet", ":7101", "-udp", ":7102"}

func (n *node) two(name string) *podOf {
	n.t.Helper()
	return n.twoWith(name, nil)
}

func (n *node) twoWith(name string, annotations map[string]string) *podOf {
	n.t.Helper()
	p := &podOf{node: n}
	p.id, p.config = n.annotated(name, annotations)
	p.server = p.make("server", nil, nil)
	p.sidecar = p.make("sidecar", elsewhere, nil)
	p.crictl("start", p.server)
	p.crictl("start", p.sidecar)
	var answer struct {
		Status struct{ Network struct{ IP string } }
	}
	if err := json.Unmarshal([]byte(p.crictl("inspectp", p.id)), &answer); err != nil {
		p.t.Fatal(err)
	}
	p.ip = answer.Status.Network.IP
	p.awaits(serverPort)
	p.awaits(sidecarPort)
	return p
}

// make makes a container, which is not started.
func (p *podOf) make(name string, command []string, mounts []map[string]any) string {
	p.t.Helper()
	p.made++
	return p.crictl("create", p.id, p.write("container.json", map[string]any{
		"metadata": map[string]any{"name": name, "attempt": p.made}, "image": map[string]any{"image": harness.Reference("testserver")},
		"command": command, "mounts": mounts, "log_path": name + ".log", "linux": map[string]any{},
	}), p.config)
}

// hibernate puts a pod to sleep, again for as long as a connection that was closed a moment ago says its last word, or containerd keeps open
// what it has forwarded.
func (n *node) hibernate(pod string) {
	n.t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		_, err := n.try("hibernatectl", "--config", n.ConfigFile(), "hibernate", namespace+"/"+pod)
		if err == nil {
			return
		}
		if said := err.Error(); !strings.Contains(said, "aborted") && !strings.Contains(said, "[port-forward]") || time.Since(begin) > limit/2 {
			n.t.Fatal(err)
		}
	}
}

// workload is the state of a pod.
func (n *node) workload(pod string) string {
	n.t.Helper()
	var answer struct{ Status struct{ State string } }
	if err := json.Unmarshal([]byte(n.must("hibernatectl", "--config", n.ConfigFile(), "inspect", "--output", "json", namespace+"/"+pod)), &answer); err != nil {
		n.t.Fatal(err)
	}
	return answer.Status.State
}

func (p *podOf) ask(method string, port int, path string) (string, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	web := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.DialNode}}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(p.ip, strconv.Itoa(port))+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := web.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(string(said))
	}
	return strings.TrimSpace(string(said)), err
}

func (p *podOf) awaits(port int) {
	p.t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		_, err := p.ask(http.MethodGet, port, "/counter")
		if err == nil {
			return
		}
		if time.Since(begin) > limit/2 {
			p.t.Fatal(err)
		}
	}
}

// counts asks a server for its counter, which each question raises by one.
func (p *podOf) counts(port int) int {
	p.t.Helper()
	said, err := p.ask(http.MethodPost, port, "/counter")
	var count int
	if err == nil {
		count, err = strconv.Atoi(said)
	}
	if err != nil {
		p.t.Fatalf("port %d: %q: %v", port, said, err)
	}
	return count
}

func (p *podOf) is(c, want string) {
	p.t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		state := p.stateOf("inspect", c)
		if state == want {
			return
		}
		if time.Since(begin) > limit/4 {
			p.t.Fatalf("the container is %s, want %s", state, want)
		}
	}
}

func (p *podOf) sleeps() {
	p.t.Helper()
	if s := p.workload(p.id); s != "asleep" {
		p.t.Errorf("the pod is %s, want asleep", s)
	}
}

func testTwo(n *node) {
	p := n.two("two")
	one, other := p.counts(serverPort), p.counts(sidecarPort)
	for cycle := 1; cycle <= 2; cycle++ {
		p.hibernate(p.id)
		p.sleeps()
		p.is(p.server, "CONTAINER_RUNNING")
		p.is(p.sidecar, "CONTAINER_RUNNING")
		p.crictl("stats", "--all")
		p.sleeps()
		if got := p.counts(sidecarPort); got != other+cycle {
			p.t.Fatalf("the sidecar counts %d after %d sleeps, want %d", got, cycle, other+cycle)
		}
		if got := p.counts(serverPort); got != one+cycle {
			p.t.Fatalf("the server counts %d after %d sleeps, want %d", got, cycle, one+cycle)
		}
	}
	for _, c := range []string{p.server, p.sidecar} {
		p.hibernate(p.id)
		if said := p.crictl("exec", c, "/bin/busybox", "true"); said != "" {
			p.t.Logf("exec says %q", said)
		}
	}
	for _, c := range []string{p.server, p.sidecar} {
		if said := p.crictl("logs", c); !strings.Contains(said, "ready") {
			p.t.Errorf("the log of %s is %q", c, said)
		}
	}
	p.stops(p.id)
	for _, c := range []string{p.server, p.sidecar} {
		p.is(c, "CONTAINER_EXITED")
	}
}

// exited is a container's exit code, once it has ended.
func (p *podOf) exited(c string) int {
	p.t.Helper()
	p.is(c, "CONTAINER_EXITED")
	var answer struct{ Status struct{ ExitCode int } }
	if err := json.Unmarshal([]byte(p.crictl("inspect", c)), &answer); err != nil {
		p.t.Fatal(err)
	}
	return answer.Status.ExitCode
}

// One ends by itself, by a signal and by SIGKILL, and the other goes on, through sleeps, too.
func testEnds(n *node) {
	p := n.two("ends")
	count := p.counts(sidecarPort)
	p.crictl("stop", "--timeout", "10", p.server) // it ends by itself then
	if code := p.exited(p.server); code != 0 {
		p.t.Errorf("the server ended with %d", code)
	}
	p.hibernate(p.id)
	if code := p.exited(p.server); code != 0 {
		p.t.Errorf("asleep, the server's exit code is %d", code)
	}
	if got := p.counts(sidecarPort); got != count+1 {
		p.t.Errorf("the sidecar counts %d, want %d", got, count+1)
	}
	again := p.make("server", nil, nil)
	p.hibernate(p.id) // what was created hinders nothing
	p.crictl("start", again)
	p.awaits(serverPort)
	p.crictl("stop", "--timeout", "0", again)
	if code := p.exited(again); code != 137 {
		p.t.Errorf("a killed server ended with %d", code)
	}
	if got := p.counts(sidecarPort); got != count+2 {
		p.t.Errorf("the sidecar counts %d, want %d", got, count+2)
	}
}

// One is killed while the pod sleeps: nothing wakes for it, and the wake after that is without it.
func testEndedAsleep(n *node) {
	p := n.two("ended-asleep")
	count := p.counts(sidecarPort)
	p.hibernate(p.id)
	p.crictl("stop", "--timeout", "0", p.server)
	if code := p.exited(p.server); code != 137 {
		p.t.Errorf("the server ended with %d", code)
	}
	p.crictl("rm", p.server)
	p.sleeps()
	if got := p.counts(sidecarPort); got != count+1 {
		p.t.Errorf("the sidecar counts %d, want %d", got, count+1)
	}
	if said, err := p.ask(http.MethodGet, serverPort, "/counter"); err == nil {
		p.t.Errorf("the server that was killed asleep says %q", said)
	}
	p.hibernate(p.id)
	if got := p.counts(sidecarPort); got != count+2 {
		p.t.Errorf("the sidecar counts %d, want %d", got, count+2)
	}
}

// One of a name is made anew, awake, while the pod sleeps, and right after a wake, while the other goes on.
func testRestart(n *node) {
	p := n.two("restart")
	count := p.counts(sidecarPort)
	for i, before := range []func(){func() {}, func() { p.hibernate(p.id) }, func() { p.hibernate(p.id); p.counts(serverPort) }} {
		before()
		p.crictl("stop", "--timeout", "0", p.server)
		p.crictl("rm", p.server)
		p.server = p.make("server", nil, nil)
		p.crictl("start", p.server)
		p.awaits(serverPort)
		p.hibernate(p.id)
		if got := p.counts(sidecarPort); got != count+i+1 {
			p.t.Fatalf("the sidecar counts %d after %d restarts, want %d", got, i+1, count+i+1)
		}
		if got := p.counts(serverPort); got != 1 {
			p.t.Errorf("the server that was made anew counts %d", got)
		}
	}
}

// Mounts of a pod: a directory that both write to, and one whose contents are swapped, as a token's are, while the pod sleeps.
func testVolumes(n *node) {
	shared, token := filepath.Join(n.Dir, "shared"), filepath.Join(n.Dir, "token")
	must := func(err error) {
		n.t.Helper()
		if err != nil {
			n.t.Fatal(err)
		}
	}
	inside := func(path string) string { return n.Path(path) }
	must(os.MkdirAll(inside(shared), 0o777))
	swap := func(version string) {
		n.t.Helper()
		dir := filepath.Join(inside(token), version)
		must(os.MkdirAll(dir, 0o755))
		must(os.WriteFile(filepath.Join(dir, "token"), []byte("token "+version), 0o644))
		must(os.Symlink(version, filepath.Join(inside(token), "..data_new")))
		before, _ := os.Readlink(filepath.Join(inside(token), "..data"))
		must(os.Rename(filepath.Join(inside(token), "..data_new"), filepath.Join(inside(token), "..data")))
		if before != "" {
			must(os.RemoveAll(filepath.Join(inside(token), before)))
		}
	}
	swap("..one")
	must(os.Symlink("..data/token", filepath.Join(inside(token), "token")))
	mounts := []map[string]any{
		{"container_path": "/shared", "host_path": shared},
		{"container_path": "/var/run/token", "host_path": token, "readonly": true},
	}
	p := &podOf{node: n}
	p.id, p.config = n.pod("volumes")
	shell := func(name string) string {
		c := p.crictl("create", p.id, p.write("container.json", map[string]any{
			"metadata": map[string]any{"name": name}, "image": map[string]any{"image": harness.Reference("busybox")},
			"command": []string{"/bin/busybox", "sleep", "1000000"}, "mounts": mounts, "log_path": name + ".log", "linux": map[string]any{},
		}), p.config)
		p.crictl("start", c)
		return c
	}
	a, b := shell("a"), shell("b")
	run := func(c, script string) string { return p.crictl("exec", c, "/bin/busybox", "sh", "-c", script) }
	run(a, "echo written > /shared/file; cat /var/run/token/token")
	p.hibernate(p.id)
	swap("..two")
	if got := run(b, "cat /shared/file"); got != "written" {
		p.t.Errorf("what a has written is %q in b", got)
	}
	for _, c := range []string{a, b} {
		if got := run(c, "cat /var/run/token/token"); got != "token ..two" {
			p.t.Errorf("the token is %q after it was changed while the pod slept", got)
		}
	}
	run(b, "echo more >> /shared/file")
	p.hibernate(p.id)
	if got := run(a, "cat /shared/file"); got != "written\nmore" {
		p.t.Errorf("the shared file is %q", got)
	}
}

// A pod with an identity is put to sleep by its stop; the next one of the identity has both servers go on where they were.
func testIdentityOfTwo(n *node) {
	annotations := map[string]string{"io.containerd.hibernate/identity": "both", "io.containerd.hibernate/on-stop": "hibernate"}
	p := n.twoWith("identity", annotations)
	one := p.counts(serverPort)
	p.counts(sidecarPort)
	other := p.counts(sidecarPort)
	for _, c := range []string{p.server, p.sidecar} {
		p.crictl("stop", "--timeout", "20", c)
		if code := p.exited(c); code != 0 {
			p.t.Errorf("a container that was put to sleep ended with %d", code)
		}
	}
	p.stops(p.id)
	next := n.twoWith("identity-next", annotations)
	if got := next.counts(sidecarPort); got != other+1 {
		n.t.Errorf("the sidecar counts %d, want %d", got, other+1)
	}
	if got := next.counts(serverPort); got != one+1 {
		n.t.Errorf("the server counts %d, want %d", got, one+1)
	}
}

// The shim is killed while the pod sleeps: the end of both is told, and all is cleaned up, which the world sees to, but what slept.
func testKilledShim(n *node) {
	p := n.two("killed-shim")
	p.hibernate(p.id)
	records, err := handover.ListRecords(n.RunDir())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range records {
		if r.ID == p.id {
			err = syscall.Kill(r.Pid, syscall.SIGKILL)
		}
	}
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range []string{p.server, p.sidecar} {
		p.is(c, "CONTAINER_EXITED")
	}
	slept := n.Path(snapshot.DirFor(n.DataDir(), namespace, p.id, ""))
	if head, err := snapshot.ReadHead(slept); err != nil || head.State != snapshot.Asleep {
		n.t.Errorf("what slept is %v, %v", head.State, err)
	}
	n.t.Cleanup(func() { _ = os.RemoveAll(slept) })
}

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// newCluster makes one for a test, which ends with it.
func newCluster(t *testing.T, images ...string) *Cluster {
	t.Helper()
	w := harness.New(t, Options())
	c, err := Start(t.Context(), w, images...)
	if err != nil {
		t.Fatal("cluster: ", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for name, p := range c.programs {
				t.Logf("--- the end of %s's log\n%s", name, p.LogTail(2000))
			}
		}
		if err := c.Close(detached(t)); err != nil {
			t.Error("end of the cluster: ", err)
		}
	})
	return c
}

// detached outlives the test, for what is done at its end.
func detached(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// What people do with pods, awake and asleep.
func TestPods(t *testing.T) {
	c := newCluster(t, "testserver")
	passed := 0
	for _, test := range []struct {
		name string
		do   func(*testing.T, *Cluster)
	}{
		{"traffic", testTraffic}, {"probes", testProbes}, {"exec", testExec}, {"logs", testLogs}, {"port-forward", testPortForward},
		{"volumes", testVolumes}, {"restart", testRestart}, {"delete", testDelete},
		{"attach", testAttach}, {"cp", testCopy}, {"metrics", testMetrics}, {"update", testUpdate}, {"eviction", testEviction},
		{"containers", testContainers}, {"digest", testDigest}, {"restarts", testRestarts},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.do(t, c)
			if !t.Failed() {
				passed++
			}
		})
	}
	fmt.Printf("kubernetes: pods_passed %d\n", passed)
}

// A Deployment's pod is woken by its own address, a Service's, a node's port and a host's port, and Kubernetes sees nothing of it.
func testTraffic(t *testing.T, c *Cluster) {
	web := server(object{"ports": []object{{"containerPort": 8080, "hostPort": 18080}}})
	c.applied(t,
		object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": labelled("web"), "spec": object{
			"replicas": 1, "selector": object{"matchLabels": object{"app": "web"}},
			"template": object{"metadata": labelled("web"), "spec": podSpec(nil, web)},
		}},
		object{"apiVersion": "v1", "kind": "Service", "metadata": labelled("web"), "spec": object{
			"type": "NodePort", "selector": object{"app": "web"}, "ports": []object{{"port": 80, "targetPort": 8080, "nodePort": 30080}},
		}},
	)
	p := c.pod(t, "web")
	p.Grow()
	service := p.tells("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	since := p.since()
	for _, way := range []struct {
		name, address string
		dial          func(context.Context, string, string) (net.Conn, error)
	}{
		{"pod", p.Address(8080), c.Dial}, {"service", net.JoinHostPort(service, "80"), c.DialNode},
		{"node port", net.JoinHostPort(c.NodeIP(), "30080"), c.Dial}, {"host port", net.JoinHostPort(c.NodeIP(), "18080"), c.Dial},
	} {
		p.HangUp()
		p.Sleep()
		client := http.Client{Timeout: known.Patience, Transport: &http.Transport{DialContext: way.dial, DisableKeepAlives: true}}
		answer, err := client.Get("http://" + way.address + "/")
		if err != nil {
			t.Errorf("%s: %v", way.name, err)
			continue
		}
		hello, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if string(hello) != "hello\n" {
			t.Errorf("%s: it says %q", way.name, hello)
		}
		p.GoesOn()
	}
	p.stays(since)
}

// Probes of each kind meet a sleeper, ten times: it is Ready throughout and not restarted.
func testProbes(t *testing.T, c *Cluster) {
	for kind, how := range map[string]object{
		"httpGet": {"path": "/", "port": 8080}, "tcpSocket": {"port": 8080}, "grpc": {"port": 8080}, "exec": {"command": []string{"/usr/bin/true"}},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			// Two seconds leave it time to fall asleep in between. A wake takes less than ten on any machine.
			probe := object{kind: how, "periodSeconds": 2, "timeoutSeconds": 10}
			p := c.run(t, "probed-"+strings.ToLower(kind), nil, server(object{"startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe}))
			p.Grow()
			p.HangUp()
			since, unhealthy := p.since(), p.unhealthy()
			for range 10 {
				p.Sleep()
				p.Awake() // by a probe
			}
			p.GoesOn()
			p.stays(since)
			if now := p.unhealthy(); now != unhealthy {
				t.Errorf("a probe failed: %s", now)
			}
		})
	}
}

// kubectl exec wakes, and tells the program's status.
func testExec(t *testing.T, c *Cluster) {
	p := c.run(t, "commanded", nil, server(nil), shell("beside", idle, nil))
	p.Grow()
	p.HangUp()
	for _, container := range []string{"server", "beside"} {
		p.Sleep()
		if said := p.tells("exec", p.name, "--container", container, "--", "echo", "here"); said != "here" {
			t.Errorf("exec in %s says %q", container, said)
		}
	}
	p.Sleep()
	_, err := c.Kubectl(t.Context(), "exec", p.name, "--container", "server", "--", "sh", "-c", "exit 7")
	if err == nil || !strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("a status of 7 is told as %v", err)
	}
	p.GoesOn()
}

// Logs are read without a wake, and followed through sleeps.
func testLogs(t *testing.T, c *Cluster) {
	p := c.run(t, "logged", nil, server(nil))
	p.Grow()
	p.HangUp()
	followed := follow(t, c, p.name)
	p.Sleep()
	if said := p.tells("logs", p.name); said != "ready" {
		t.Errorf("the log says %q", said)
	}
	if state := p.state(); state != "asleep" {
		t.Errorf("after its log was read, the pod is %s", state)
	}
	p.Get("GET", "/log?line=woken")
	eventually(t, "who follows the log reads on", func() bool { return followed.String() == "ready\nwoken\n" })
}

// follow follows a pod's log until the test ends.
func follow(t *testing.T, c *Cluster, name string) *output {
	t.Helper()
	out := new(output)
	cmd := c.KubectlCommand(detached(t), "logs", "--follow", name, "--container", "server")
	cmd.Stdout, cmd.Stderr = out, out
	start(t, cmd)
	eventually(t, "the log begins", func() bool { return strings.HasPrefix(out.String(), "ready\n") })
	return out
}

// start starts a program, which ends with the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
}

// output is what a program has said so far.
type output struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}

// kubectl port-forward reaches what runs in the sandbox, awake and asleep.
func testPortForward(t *testing.T, c *Cluster) {
	p := c.run(t, "forwarded", nil, server(nil))
	p.Grow()
	p.HangUp()
	said := new(output)
	cmd := c.KubectlCommand(detached(t), "port-forward", "pod/"+p.name, ":8080")
	cmd.Stdout, cmd.Stderr = said, said
	start(t, cmd)
	var port int
	eventually(t, "kubectl forwards a port", func() bool {
		_, err := fmt.Sscanf(said.String(), "Forwarding from 127.0.0.1:%d", &port)
		return err == nil
	})
	client := http.Client{Timeout: known.Patience, Transport: &http.Transport{DialContext: c.DialNode, DisableKeepAlives: true}}
	for _, state := range []string{"awake", "asleep"} {
		if state == "asleep" {
			p.Sleep()
		}
		answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			t.Fatalf("%s: %v\n%s", state, err, said)
		}
		answer.Body.Close()
	}
	p.GoesOn()
}

// What containers of a pod share is there after a sleep, and what the API gives them.
func testVolumes(t *testing.T, c *Cluster) {
	c.applied(t,
		object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "settings"}, "data": object{"key": "of the map"}},
		object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "secrets"}, "stringData": object{"key": "of the secret"}},
	)
	mounts := object{"volumeMounts": []object{
		{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
		{"name": "settings", "mountPath": "/settings"}, {"name": "secrets", "mountPath": "/secrets"},
	}}
	p := c.run(t, "sharing", object{"volumes": []object{
		{"name": "disk", "emptyDir": object{}}, {"name": "memory", "emptyDir": object{"medium": "Memory"}},
		{"name": "settings", "configMap": object{"name": "settings"}}, {"name": "secrets", "secret": object{"secretName": "secrets"}},
	}}, server(mounts), shell("beside", idle, mounts))
	p.Grow()
	p.HangUp()
	p.tells("exec", p.name, "--container", "beside", "--", "sh", "-c", "echo on disk >/disk/file; echo in memory >/memory/file")
	p.Sleep()
	if said := p.tells("exec", p.name, "--container", "server", "--", "cat", "/disk/file", "/memory/file", "/settings/key", "/secrets/key"); said != "on disk\nin memory\nof the mapof the secret" {
		t.Errorf("after the sleep the files say %q", said)
	}
	p.GoesOn()
}

// One container that ends is started again, and the others go on; then all sleep again.
func testRestart(t *testing.T, c *Cluster) {
	p := c.run(t, "restarting", nil, server(nil), shell("beside", "trap 'exit 3' TERM; while :; do sleep 0.1; done", nil))
	p.Grow()
	p.HangUp()
	p.Sleep()
	p.tells("exec", p.name, "--container", "beside", "--", "sh", "-c", "kill -TERM 1")
	const restarts = `{.status.containerStatuses[?(@.name=="beside")].restartCount} {.status.containerStatuses[?(@.name=="beside")].ready}`
	eventually(t, "the container is started again", func() bool { return p.field(restarts) == "1 true" })
	p.GoesOn()
	p.HangUp()
	p.Sleep()
	p.GoesOn()
	if n := p.field(`{.status.containerStatuses[?(@.name=="server")].restartCount}`); n != "0" {
		t.Errorf("the other container was restarted %s times", n)
	}
}

// A sleeper that is deleted is woken, signalled, and gone.
func testDelete(t *testing.T, c *Cluster) {
	p := c.run(t, "deleted", nil, server(nil))
	p.Grow()
	p.HangUp()
	followed := follow(t, c, p.name)
	p.Sleep()
	p.tells("delete", "pod", p.name, "--timeout=25s")
	eventually(t, "it said bye", func() bool { return followed.String() == "ready\nbye\n" })
}

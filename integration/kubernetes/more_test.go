package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// kubectl attach reads on through a sleep, and what it is told arrives.
func testAttach(t *testing.T, c *Cluster) {
	p := c.run(t, "attached", nil, server(nil), shell("beside", "trap 'exit 0' TERM; while read -r line; do echo \"told $line\"; done", object{"stdin": true}))
	p.Grow()
	p.HangUp()
	said := new(output)
	cmd := c.KubectlCommand(detached(t), "attach", p.name, "--container", "beside", "--stdin")
	cmd.Stdout = said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	tell := func(word, want string) {
		t.Helper()
		fmt.Fprintln(in, word)
		eventually(t, "it answers", func() bool { return strings.HasSuffix(said.String(), want) })
	}
	tell("first", "told first\n")
	p.Sleep()
	tell("second", "told second\n") // which wakes it
	p.GoesOn()
}

// kubectl cp takes a file out, and puts one in.
func testCopy(t *testing.T, c *Cluster) {
	p := c.run(t, "copied", nil, server(nil))
	p.Grow()
	p.HangUp()
	from, back := filepath.Join(c.Dir, "from"), filepath.Join(c.Dir, "back")
	if err := os.WriteFile(from, []byte("from outside\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.tells("exec", p.name, "--container", "server", "--", "/usr/bin/busybox", "ln", "-s", "busybox", "/usr/bin/tar") // which kubectl runs
	p.Sleep()
	p.tells("cp", from, p.name+":/tmp/file", "--container", "server")
	p.Sleep()
	p.tells("cp", p.name+":/tmp/file", back, "--container", "server")
	if got, err := os.ReadFile(back); err != nil || string(got) != "from outside\n" {
		t.Errorf("the file says %q, %v", got, err)
	}
}

// What kubelet tells of the pod's use: processor time that never falls, memory that is never zero.
func testMetrics(t *testing.T, c *Cluster) {
	p := c.run(t, "measured", nil, server(nil))
	p.Grow()
	p.HangUp()
	var before float64
	measured := func(state string) {
		t.Helper()
		eventually(t, "kubelet has figures of the pod "+state, func() bool {
			cpu, memory, ok := p.use()
			if ok && (cpu < before || cpu == 0 || memory == 0) {
				t.Fatalf("%s: %g s of a processor after %g, %g bytes", state, cpu, before, memory)
			}
			before = max(before, cpu)
			return ok
		})
	}
	measured("awake")
	p.Sleep()
	for range 3 {
		measured("asleep")
	}
	if state := p.state(); state != "asleep" {
		t.Errorf("after it was measured, the pod is %s", state)
	}
	p.GoesOn()
	measured("woken")
}

// use is what metrics-server would read.
func (p *pod) use() (cpu, memory float64, ok bool) {
	p.t.Helper()
	for line := range strings.Lines(p.tells("get", "--raw", "/api/v1/nodes/"+p.c.Node+"/proxy/metrics/resource")) {
		if !strings.Contains(line, `pod="`+p.name+`"`) {
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, "}")+1:], &value); err != nil {
			p.t.Fatal(err)
		}
		switch name {
		case "container_cpu_usage_seconds_total":
			cpu = value
		case "container_memory_working_set_bytes":
			memory, ok = value, true
		}
	}
	return cpu, memory, ok
}

// A changed template's pods begin afresh, whatever sleeps.
func testUpdate(t *testing.T, c *Cluster) {
	deployment := func(env string) object {
		return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": labelled("updated"), "spec": object{
			"replicas": 1, "selector": object{"matchLabels": object{"app": "updated"}},
			"template": object{"metadata": labelled("updated"), "spec": podSpec(nil, server(object{"env": []object{{"name": "VERSION", "value": env}}}))},
		}}
	}
	c.applied(t, deployment("1"))
	p := c.pod(t, "updated")
	p.Grow()
	p.Count()
	p.HangUp()
	p.Sleep()
	if err := c.Apply(t.Context(), deployment("2")); err != nil {
		t.Fatal(err)
	}
	p.tells("rollout", "status", "deployment/updated", "--timeout=25s")
	eventually(t, "the old pod is gone", func() bool {
		return p.tells("get", "pods", "--selector", "app=updated", "--output", "jsonpath={.items[*].metadata.name}") != p.name &&
			len(strings.Fields(p.tells("get", "pods", "--selector", "app=updated", "--output", "name"))) == 1
	})
	next := c.pod(t, "updated")
	next.Grow() // from one
	if env := next.Get("GET", "/env"); !strings.Contains(env, "VERSION=2") {
		t.Errorf("the new pod has %s", env)
	}
}

// A drained node's sleeper is evicted.
func testEviction(t *testing.T, c *Cluster) {
	p := c.run(t, "evicted", nil, server(nil))
	p.Grow()
	p.HangUp()
	p.Sleep()
	defer p.tells("uncordon", c.Node)
	p.tells("drain", c.Node, "--pod-selector=app=evicted", "--force", "--timeout=25s")
	if left := p.tells("get", "pods", "--selector=app=evicted", "--output", "name"); left != "" {
		t.Errorf("%s is still there", left)
	}
}

// Init containers have run, and one that restarts always goes on beside the others; a container for debugging comes to a sleeper.
func testContainers(t *testing.T, c *Cluster) {
	p := c.run(t, "several", object{
		"volumes": []object{{"name": "disk", "emptyDir": object{}}},
		"initContainers": []object{
			shell("first", "echo initialised >/disk/file", object{"volumeMounts": []object{{"name": "disk", "mountPath": "/disk"}}}),
			shell("sidecar", idle, object{"restartPolicy": "Always"}),
		},
	}, server(object{"volumeMounts": []object{{"name": "disk", "mountPath": "/disk"}}}))
	p.Grow()
	p.HangUp()
	p.Sleep()
	if said := p.tells("exec", p.name, "--container", "server", "--", "cat", "/disk/file"); said != "initialised" {
		t.Errorf("the file says %q", said)
	}
	p.Sleep()
	p.tells("debug", p.name, "--image", harness.Reference("testserver"), "--container", "debugger", "--profile", "general", "--", "/usr/bin/sh", "-c", "echo debugging; "+idle)
	eventually(t, "the debugger speaks", func() bool {
		said, err := c.Kubectl(t.Context(), "logs", p.name, "--container", "debugger")
		return err == nil && said == "debugging"
	})
	p.GoesOn()
	p.HangUp()
	p.Sleep()
	p.GoesOn()
}

// An image is pulled by its digest.
func testDigest(t *testing.T, c *Cluster) {
	said, err := c.Output(t.Context(), "crictl", "--config", c.file("crictl.yaml"), "inspecti", harness.Reference("testserver"))
	if err != nil {
		t.Fatal(err)
	}
	var image struct {
		Status struct{ RepoDigests []string }
	}
	if err := json.Unmarshal([]byte(said), &image); err != nil || len(image.Status.RepoDigests) == 0 {
		t.Fatalf("%v: %s", err, said)
	}
	p := c.run(t, "digested", nil, server(object{"image": image.Status.RepoDigests[0], "imagePullPolicy": "Always"}))
	p.Grow()
	p.HangUp()
	p.Sleep()
	p.GoesOn()
}

// kubelet and containerd are restarted while a pod sleeps, and when it is awake: it is the same, and Ready.
func testRestarts(t *testing.T, c *Cluster) {
	p := c.run(t, "kept", nil, server(nil))
	p.Grow()
	p.HangUp()
	restarts := p.field(`{.status.containerStatuses[*].restartCount} {.status.containerStatuses[*].containerID}`)
	for _, state := range []string{"asleep", "awake"} {
		if state == "asleep" {
			p.Sleep()
		}
		for _, program := range []*harness.Program{c.Containerd, c.Program("kubelet")} {
			ctx, cancel := context.WithTimeout(t.Context(), startLimit)
			defer cancel()
			if err := program.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := program.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
		c.pod(t, "kept")
		if now := p.state(); now != state {
			t.Errorf("after the restarts a pod that was %s is %s", state, now)
		}
		p.GoesOn()
		p.HangUp()
	}
	if now := p.field(`{.status.containerStatuses[*].restartCount} {.status.containerStatuses[*].containerID}`); now != restarts {
		t.Errorf("the containers were %s and are %s", restarts, now)
	}
}

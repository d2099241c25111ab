package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// object is what the API takes, as it is in manifests.
type object = map[string]any

// server is a container with the test server, to which more is added.
func server(more object) object {
	c := object{
		"name": "server", "image": harness.Reference("testserver"), "ports": []object{{"containerPort": 8080}},
		"resources": object{"requests": object{"cpu": "10m", "memory": "32Mi"}, "limits": object{"memory": "512Mi"}},
	}
	for k, v := range more {
		c[k] = v
	}
	return c
}

// idle does nothing until it is told to end.
const idle = "trap 'exit 0' TERM; sleep infinity & wait"

// shell is a container that runs a script.
func shell(name, script string, more object) object {
	c := object{"name": name, "image": harness.Reference("testserver"), "command": []string{"/usr/bin/sh", "-c", script}}
	for k, v := range more {
		c[k] = v
	}
	return c
}

// podSpec is that of a pod of this runtime's: of its RuntimeClass, and nothing else says so.
func podSpec(more object, containers ...object) object {
	s := object{"runtimeClassName": "hibernate", "terminationGracePeriodSeconds": 10, "dnsPolicy": "Default", "containers": containers}
	for k, v := range more {
		s[k] = v
	}
	return s
}

// labelled is the metadata of an object by whose name others find it.
func labelled(name string) object {
	return object{"name": name, "labels": object{"app": name}}
}

// A pod is one that runs the test server.
type pod struct {
	*known.Server
	c    *Cluster
	t    *testing.T
	name string
}

// run makes a pod, which is gone with the test, and waits until it is Ready.
func (c *Cluster) run(t *testing.T, name string, more object, containers ...object) *pod {
	t.Helper()
	c.applied(t, object{"apiVersion": "v1", "kind": "Pod", "metadata": labelled(name), "spec": podSpec(more, containers...)})
	return c.pod(t, name)
}

// applied makes objects, which are gone with the test.
func (c *Cluster) applied(t *testing.T, objects ...object) {
	t.Helper()
	if err := c.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range objects {
			name := o["metadata"].(object)["name"].(string)
			if _, err := c.Kubectl(detached(t), "delete", o["kind"].(string), name, "--ignore-not-found", "--cascade=foreground", "--timeout=25s"); err != nil {
				t.Error(err)
			}
		}
	})
}

// pod waits until the only pod with a label is Ready.
func (c *Cluster) pod(t *testing.T, app string) *pod {
	t.Helper()
	if err := c.Until(t.Context(), "True", "get", "pods", "--selector", "app="+app, "--output", `jsonpath={.items[0].status.conditions[?(@.type=="Ready")].status}`); err != nil {
		events, _ := c.Kubectl(t.Context(), "get", "events", "--sort-by=.lastTimestamp", "--output=custom-columns=:.involvedObject.name,:.reason,:.message")
		t.Fatalf("%v\nevents:\n%s", err, events)
	}
	p := &pod{c: c, t: t}
	p.name = p.tells("get", "pods", "--selector", "app="+app, "--output", "jsonpath={.items[0].metadata.name}")
	uid := p.tells("get", "pod", p.name, "--output", "jsonpath={.metadata.uid}")
	id, err := c.Output(t.Context(), "crictl", "--config", c.file("crictl.yaml"), "pods", "--quiet", "--state", "ready", "--label", "io.kubernetes.pod.uid="+uid)
	if err != nil {
		t.Fatal(err)
	}
	p.Server = known.New(t, c.World, strings.TrimSpace(id), harness.Pod{IP: p.field("{.status.podIP}")})
	return p
}

// Sleep puts the pod to sleep, again and again for as long as somebody uses it, as kubelet does with a probe.
func (p *pod) Sleep() {
	p.t.Helper()
	eventually(p.t, "the pod falls asleep", func() bool {
		done, err := p.c.Hibernate(detached(p.t), p.ID)
		switch code := status.Code(err); {
		case err == nil:
			return done.GetOutcome() == "slept"
		case code != codes.Aborted && (code != codes.FailedPrecondition || !strings.Contains(err.Error(), "[busy]") && !strings.Contains(err.Error(), "[exec]")):
			p.t.Fatalf("hibernation: %v, %v", done, err)
		}
		return false
	})
}

// tells is what kubectl says, which must not fail.
func (p *pod) tells(args ...string) string {
	p.t.Helper()
	said, err := p.c.Kubectl(detached(p.t), args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return said
}

// field is one of the pod's, as the API has it.
func (p *pod) field(path string) string {
	p.t.Helper()
	return p.tells("get", "pod", p.name, "--output", "jsonpath="+path)
}

// state is the workload's own, as asleep.
func (p *pod) state() string {
	p.t.Helper()
	now, err := p.c.Status(detached(p.t), p.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	return now.GetState()
}

// since is the moment from which on the pod has been Ready, or not, as it is now; and how often its containers were restarted.
func (p *pod) since() string {
	p.t.Helper()
	return p.field(`{.status.conditions[?(@.type=="Ready")]}` + ` {.status.containerStatuses[*].restartCount}`)
}

// unhealthy is what Kubernetes tells of probes that failed, as some do before the server listens.
func (p *pod) unhealthy() string {
	p.t.Helper()
	return p.tells("get", "events", "--field-selector", "reason=Unhealthy,involvedObject.name="+p.name, "--output", "jsonpath={range .items[*]}{.count} {.message}; {end}")
}

// stays is that nothing of the pod has changed, as Kubernetes sees it.
func (p *pod) stays(since string) {
	p.t.Helper()
	if now := p.since(); now != since {
		p.t.Errorf("the pod was\n%s\nand is\n%s", since, now)
	}
}

// eventually is known's, for a test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > known.Patience {
			t.Fatal(fmt.Sprint("in vain: ", what))
		}
	}
}

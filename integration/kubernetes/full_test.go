package kubernetes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// full says that the test is of those that take long, and skips it elsewhere.
func full(t *testing.T) {
	t.Helper()
	if os.Getenv("HIBERNATE_FULL") != "1" {
		t.Skip("needs HIBERNATE_FULL=1: make full-kubernetes")
	}
}

// asleep puts to sleep what of a Deployment's is not asleep yet, and returns all of its workloads.
func (c *Cluster) asleep(t *testing.T, app string) []string {
	t.Helper()
	said, err := c.Output(t.Context(), "crictl", "--config", c.file("crictl.yaml"), "pods", "--quiet", "--state", "ready", "--label", "app="+app)
	if err != nil {
		t.Fatal(err)
	}
	ids := strings.Fields(said)
	for _, id := range ids {
		if now, err := c.Status(t.Context(), id); err == nil && now.GetState() == "asleep" {
			continue
		}
		if done, err := c.Sleep(t.Context(), id); err != nil || done.GetOutcome() != "slept" {
			t.Fatalf("%s: %v, %v", id, done, err)
		}
	}
	return ids
}

// A hundred pods sleep on a node that stays Ready; ten that are woken at once are Ready, too.
func TestHundred(t *testing.T) {
	full(t)
	const all, step = 100, 10
	c := newCluster(t, "testserver")
	deployment := func(replicas int) object {
		return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": labelled("many"), "spec": object{
			"replicas": replicas, "selector": object{"matchLabels": object{"app": "many"}},
			"template": object{"metadata": labelled("many"), "spec": podSpec(object{"terminationGracePeriodSeconds": 1}, server(nil))},
		}}
	}
	var ids []string
	for n := step; n <= all; n += step {
		if err := c.Apply(t.Context(), deployment(n)); err != nil {
			t.Fatal(err)
		}
		if err := c.Until(t.Context(), fmt.Sprint(n), "get", "deployment", "many", "--output", "jsonpath={.status.readyReplicas}"); err != nil {
			t.Fatal(err)
		}
		ids = c.asleep(t, "many")
	}
	if len(ids) != all {
		t.Fatalf("%d pods sleep, want %d", len(ids), all)
	}
	time.Sleep(2 * time.Minute) // kubelet's look at its pods is three minutes old at most
	const ready = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	if err := c.Until(t.Context(), "True", "get", "node", c.Node, "--output", ready); err != nil {
		t.Error(err)
	}
	woken := make(chan error)
	for _, id := range ids[:step] {
		go func() {
			_, err := c.Wake(t.Context(), id)
			woken <- err
		}()
	}
	for range step {
		if err := <-woken; err != nil {
			t.Error(err)
		}
	}
	if err := c.Until(t.Context(), fmt.Sprint(all), "get", "deployment", "many", "--output", "jsonpath={.status.readyReplicas}"); err != nil {
		t.Error(err)
	}
	fmt.Printf("kubernetes: sleeping_pods %d\n", all)
}

// The machine is stopped in order and booted: its pods are Ready again.
func TestBoot(t *testing.T) {
	full(t)
	c := newCluster(t, "testserver")
	p := c.run(t, "booted", nil, server(nil))
	p.Grow()
	p.HangUp()
	if _, err := c.Output(t.Context(), "hibernatectl", "--config", c.ConfigFile(), "drain", "--force", "--until-boot"); err != nil {
		t.Fatal(err)
	}
	before := p.ID
	c.boot(t)
	eventually(t, "the pod has a sandbox again", func() bool { return c.pod(t, "booted").ID != before })
	c.pod(t, "booted").Grow() // from one: it has no identity
}

// boot ends all programs of the node, and starts them again, as a machine's do.
func (c *Cluster) boot(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if err := c.Reboot(ctx, true); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"registry", "etcd"}, servers...) {
		if err := c.Program(name).Kill(); err != nil { // which waits until it is known to have ended
			t.Fatal(err)
		}
	}
	for _, p := range []*harness.Program{
		c.Containerd, c.Daemon, c.Program("registry"), c.Program("etcd"), c.Program("kube-apiserver"), c.Program("kube-controller-manager"),
		c.Program("kube-scheduler"), c.Program("kubelet"), c.Program("kube-proxy"),
	} {
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

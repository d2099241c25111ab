package cri

import (
	"strings"
	"testing"
)

// A pod's sandbox runs, and its containers, which this runtime doesn't run yet, are refused with the reason. Nothing hangs
// and nothing is left: the world sees to that.
func TestPods(t *testing.T) {
	n := newNode(t, "pause")
	for name, test := range map[string]func(*node){
		"refused": testRefused, "checkpoint": testCheckpoint, "stop-awake": testStop, "stop-asleep": testStopAsleep, "identity": testIdentity,
	} {
		t.Run(name, func(t *testing.T) { test(&node{n.World, t, n.config}) })
	}
}

func testRefused(n *node) {
	pod, config := n.pod("refused")
	c := n.container(pod, config)
	n.refused([]string{"no pods yet", "another RuntimeClass", "Unimplemented"}, "start", c)
	if state := n.stateOf("inspect", c); state != "CONTAINER_EXITED" {
		n.t.Errorf("the container is %s", state)
	}
	if state := n.stateOf("inspectp", pod); state != "SANDBOX_READY" {
		n.t.Errorf("the pod is %s", state)
	}
	n.crictl("rm", c)
}

// There is no running container for `crictl checkpoint` as long as there are no pods: containerd refuses.
func testCheckpoint(n *node) {
	pod, config := n.pod("checkpoint")
	c := n.container(pod, config)
	n.refused([]string{"CONTAINER_CREATED", "only CONTAINER_RUNNING containers can be checkpointed"}, "checkpoint", "--export", n.Dir+"/c.tar", c)
	n.refused([]string{"no pods yet"}, "start", c)
	n.refused([]string{"CONTAINER_EXITED", "only CONTAINER_RUNNING containers can be checkpointed"}, "checkpoint", "--export", n.Dir+"/c.tar", c)
}

func testStop(n *node) {
	pod, _ := n.pod("awake")
	n.stops(pod)
}

// Stopping a pod whose sandbox sleeps wakes nothing.
func testStopAsleep(n *node) {
	pod, _ := n.pod("asleep")
	n.must("hibernatectl", "--config", n.ConfigFile(), "hibernate", namespace+"/"+pod)
	n.stops(pod)
}

// An identity is within the pod's namespace as CRI knows it, even where a pod may write annotations by the names that CRI writes itself.
func testIdentity(n *node) {
	pod, _ := n.annotated("identity", map[string]string{
		"io.containerd.hibernate/identity": "db", "io.kubernetes.cri.sandbox-namespace": "bank", "io.kubernetes.other": "passed",
	})
	told := n.must("hibernatectl", "--config", n.ConfigFile(), "inspect", namespace+"/"+pod)
	if !strings.Contains(told, "default/db") || strings.Contains(told, "bank") {
		n.t.Errorf("inspect says:\n%s", told)
	}
	n.must("hibernatectl", "--config", n.ConfigFile(), "hibernate", namespace+"/"+pod)
	n.stops(pod)
}

func (n *node) stops(pod string) {
	n.t.Helper()
	n.crictl("stopp", pod)
	if state := n.stateOf("inspectp", pod); state != "SANDBOX_NOTREADY" {
		n.t.Errorf("the pod is %s", state)
	}
}

package cri

import (
	"strings"
	"testing"
)

// A pod's sandbox runs, with a container or without one. Nothing hangs and nothing is left: the world sees to that.
func TestPods(t *testing.T) {
	n := newNode(t, "pause")
	for name, test := range map[string]func(*node){
		"checkpoint": testCheckpoint, "stop-awake": testStop, "stop-asleep": testStopAsleep, "identity": testIdentity,
	} {
		t.Run(name, func(t *testing.T) { test(&node{n.World, t, n.config}) })
	}
}

// A checkpoint of a container is one of its pod, awake and asleep; it goes on as it was.
func testCheckpoint(n *node) {
	pod, config := n.pod("checkpoint")
	c := n.container(pod, config)
	n.refused([]string{"CONTAINER_CREATED", "only CONTAINER_RUNNING containers can be checkpointed"}, "checkpoint", "--export", n.Dir+"/c.tar", c)
	n.crictl("start", c)
	n.crictl("checkpoint", "--export", n.Dir+"/awake.tar", c)
	n.hibernate(pod)
	n.crictl("checkpoint", "--export", n.Dir+"/asleep.tar", c)
	if s := n.workload(pod); s != "asleep" {
		n.t.Errorf("the pod is %s after a checkpoint of it asleep", s)
	}
	if state := n.stateOf("inspect", c); state != "CONTAINER_RUNNING" {
		n.t.Errorf("the container is %s", state)
	}
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

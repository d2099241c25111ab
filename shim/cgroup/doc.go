// Package cgroup keeps the control group of a container for the container's
// whole life, across all its sandboxes.
//
// The shim makes the group before the first `runsc create`, with the holder in
// it, and runsc leaves alone what it finds: so the group, its limits and its
// counters live through sleep, and cAdvisor and the kubelet see no gap. A
// directory that this package made carries a mark (an extended attribute), by
// which a later process knows what to remove; parents that were there, such as
// a pod's group, are never removed.
//
// Hosts differ: on v1 and hybrid hosts a group is one directory in each
// hierarchy, on v2 hosts it is one directory. Both are hidden here, but for the
// type of Metrics, which containerd wants to be that of the host.
//
// The device list of the resources is never applied: the sandbox process needs
// its platform's devices, and what a container may open is decided inside the
// sandbox. runsc does not apply it either.
package cgroup

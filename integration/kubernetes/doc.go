// Package kubernetes makes a Kubernetes of one node in a world (integration/harness), and tests this runtime in it: `make
// test-kubernetes`.
//
// A Cluster is etcd, the control plane, kubelet and kube-proxy, as their own projects have them (tools/kube), with the
// world's containerd, its CNI network and its daemon. The node's address is that of CNI's bridge, so that pods reach the
// API, too. What kubelet would change on the machine it finds changed, or private: sysctls of the kernel, /var/lib, /var/log;
// its control groups are below the world's. Everything has one user, who may do all.
//
//	w := harness.New(t, kubernetes.Options())
//	c, err := kubernetes.Start(ctx, w)
//	c.Apply(ctx, object)
//	c.Kubectl(ctx, "get", "pods")
//	c.Close(ctx)
package kubernetes

package kubernetes

import (
	"context"
	"net"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// servers are the programs besides etcd.
var servers = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

// serviceNet is none that a world's pods may have.
const serviceNet = "172.30.0.0/24"

// prepared is one of the cluster's programs, with its arguments. Ports are those that each is known for: the network is the
// cluster's own.
func (c *Cluster) prepared(name string) *harness.Program {
	ip := c.NodeIP()
	switch name {
	case "etcd":
		return c.Prepare(name, []string{"--data-dir=" + c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn"}, c.listens("127.0.0.1:2379"))
	case "kube-apiserver":
		return c.Prepare(name, []string{
			"--bind-address=" + ip, "--advertise-address=" + ip, "--secure-port=6443", "--cert-dir=" + c.file("apiserver"),
			"--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=" + serviceNet, "--authorization-mode=AlwaysAllow",
			"--token-auth-file=" + c.file("tokens.csv"), "--allow-privileged=true", "--profiling=false",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + c.file("accounts.key"), "--service-account-signing-key-file=" + c.file("accounts.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + c.file("kubelet.crt"), "--kubelet-client-key=" + c.file("kubelet.key"),
		}, func(ctx context.Context) error {
			_, err := c.Kubectl(ctx, "get", "--raw=/readyz")
			return err
		})
	case "kube-controller-manager":
		return c.Prepare(name, []string{
			"--kubeconfig=" + c.file("kubeconfig"), "--bind-address=127.0.0.1", "--cert-dir=" + c.file("controllers"), "--leader-elect=false",
			"--service-account-private-key-file=" + c.file("accounts.key"), "--root-ca-file=" + c.file("apiserver/apiserver.crt"),
			"--allocate-node-cidrs=false", "--profiling=false",
		}, c.listens("127.0.0.1:10257"))
	case "kube-scheduler":
		return c.Prepare(name, []string{
			"--kubeconfig=" + c.file("kubeconfig"), "--bind-address=127.0.0.1", "--cert-dir=" + c.file("scheduler"), "--leader-elect=false",
			"--profiling=false",
		}, c.listens("127.0.0.1:10259"))
	case "kubelet":
		return c.Prepare(name, []string{
			"--config=" + c.file("kubelet.yaml"), "--kubeconfig=" + c.file("kubeconfig"), "--root-dir=" + c.file("kubelet"),
			"--cert-dir=" + c.file("kubelet-certs"), "--hostname-override=" + c.Node, "--node-ip=" + ip,
		}, c.listens(net.JoinHostPort(ip, "10250")))
	default:
		return c.Prepare(name, []string{"--config=" + c.file("proxy.yaml")}, c.listens("127.0.0.1:10256"))
	}
}

// listens says that a program is ready once its port is open.
func (c *Cluster) listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := c.DialNode(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// write writes all configuration, as JSON, which YAML includes, and makes keys.
func (c *Cluster) write(context.Context) error {
	token := rand.Text()
	err := errors.Join(
		os.WriteFile(c.file("tokens.csv"), []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600),
		os.WriteFile(c.file("resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o644),
		newKey(c.file("accounts.key"), ""),
		newKey(c.file("kubelet.key"), c.file("kubelet.crt")),
	)
	for name, config := range map[string]any{
		"kubeconfig": c.kubeconfig(token), "kubelet.yaml": c.kubelet(), "proxy.yaml": c.proxy(), "crictl.yaml": map[string]any{
			"runtime-endpoint": "unix://" + c.Address(), "image-endpoint": "unix://" + c.Address(), "timeout": int(stepLimit.Seconds()),
		},
	} {
		data, jsonErr := json.Marshal(config)
		err = errors.Join(err, jsonErr, os.WriteFile(c.file(name), data, 0o600))
	}
	return err
}

// kubeconfig is everybody's. The API server signs its own certificate, which so is its authority, too.
func (c *Cluster) kubeconfig(token string) any {
	type named = map[string]any
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "world",
		"clusters": []named{{"name": "world", "cluster": named{
			"server": "https://" + c.NodeIP() + ":6443", "certificate-authority": c.file("apiserver/apiserver.crt"),
		}}},
		"users":    []named{{"name": "admin", "user": named{"token": token}}},
		"contexts": []named{{"name": "world", "context": named{"cluster": "world", "user": "admin"}}},
	}
}

// kubelet never evicts and collects nothing, since the machine is used by others, too. Whoever reaches it, as pods do, must
// have the API server's certificate.
func (c *Cluster) kubelet() any {
	never := map[string]string{}
	for _, signal := range []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"} {
		never[signal] = "0%"
	}
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": c.NodeIP(), "healthzPort": 0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false},
			"x509": map[string]any{"clientCAFile": c.file("kubelet.crt")},
		},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix://" + c.Address(),
		"failCgroupV1":             false, "cgroupDriver": "cgroupfs", "cgroupRoot": "/" + c.Name,
		"enforceNodeAllocatable": []string{"pods"}, "evictionHard": never, "imageGCHighThresholdPercent": 100,
		"failSwapOn": false, "oomScoreAdj": 0, "maxOpenFiles": 20000, "makeIPTablesUtilChains": false,
		"resolvConf": c.file("resolv.conf"), "podLogsDir": c.file("pods"), "volumePluginDir": c.file("kubelet/plugins"),
		"maxPods": 250, "nodeStatusUpdateFrequency": "5s", "shutdownGracePeriod": "0s",
	}
}

func (c *Cluster) proxy() any {
	address := c.NodeIP()
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
		"clientConnection": map[string]any{"kubeconfig": c.file("kubeconfig")}, "hostnameOverride": c.Node,
		"clusterCIDR": address[:strings.LastIndex(address, ".")] + ".0/24", "detectLocalMode": "ClusterCIDR",
		"healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249", "oomScoreAdj": 0,
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"nftables":  map[string]any{"minSyncPeriod": "100ms", "syncPeriod": "30s"},
	}
}

// newKey writes a key, and, unless cert is empty, a certificate that it signs itself.
func newKey(file, cert string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(file, "EC PRIVATE KEY", der); err != nil || cert == "" {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
		return err
	}
	return writePEM(cert, "CERTIFICATE", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

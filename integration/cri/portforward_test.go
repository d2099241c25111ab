package cri

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// crictl's port-forward, which has containerd dial localhost in the pod's network, reaches what runs in the sandbox: awake,
// and asleep, which wakes it. The sandbox's program is a server here, in place of pause.
func TestPortForward(t *testing.T) {
	n := newNode(t, "testserver")
	pod, _ := n.pod("forwarded")
	n.serves(pod)
	n.hibernate(pod) // once containerd has closed what it forwarded
	n.serves(pod)
	if said := n.must("hibernatectl", "--config", n.ConfigFile(), "inspect", namespace+"/"+pod); !strings.Contains(said, "port-forward") {
		t.Errorf("nothing is said of a wake by port-forward: %s", said)
	}
}

// serves asks the pod's server over a forwarded port.
func (n *node) serves(pod string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), limit)
	defer cancel()
	cmd := n.Command(ctx, "crictl", "--config", n.config, "port-forward", pod, ":8080")
	said, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer cancel()
	line, err := bufio.NewReader(said).ReadString('\n')
	var port int
	if err == nil {
		_, err = fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d", &port)
	}
	if err != nil {
		n.t.Fatalf("crictl says %q: %v", line, err)
	}
	go io.Copy(io.Discard, said)
	web := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.DialNode}}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) { // its server may not listen yet
		r, err := web.Get("http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(port)) + "/counter")
		if err == nil {
			r.Body.Close()
			return
		}
		if time.Since(begin) > limit/2 {
			n.t.Fatal(err)
		}
	}
}

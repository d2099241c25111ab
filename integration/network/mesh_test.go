package network

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// ambient is what Istio's CNI agent makes in the namespace of a pod of an ambient mesh: its marks 0x111 and 0x539, its table 100,
// and its chains (istio/istio, cni/pkg/iptables). ztunnel's ports are its own.
const ambient = `set -e
ip rule add fwmark 0x111/0xfff pref 32764 lookup 100
ip route add local 0.0.0.0/0 dev lo table 100
iptables-restore --noflush <<END
*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -s 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp -m tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -m tcp --dport 15999 -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
COMMIT
END`

// A pod of a mesh runs as under plain gVisor, in the pod's own namespace, and is never put to sleep, for the reason mesh. The
// mesh's rules, marks and routes are as they were: while it runs, and when it has ended.
func TestMeshIsLeftAlone(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"auto"`, "idle-timeout": `"1s"`}})
	pod, err := w.NewPod(t.Context(), "meshed")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, world: w, pod: pod, web: w.HTTP()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(w.Remove(ctx, id), w.RemovePod(ctx, pod)); err != nil {
			t.Error(err)
		}
	})
	inPod := func(script string) string {
		out, err := w.Shell(s.ctx(), "ip netns exec meshed sh <<'SCRIPT'\n"+script+"\nSCRIPT")
		s.must(err)
		return out
	}
	inPod(ambient)
	// Plain gVisor takes the interface's address, and what the kernel made of it; so that is not looked at.
	look := "ip rule; ip route show table 100; nft list tables; for t in nat mangle; do iptables-save -t $t | grep '^-'; done"
	before := inPod(look)
	_, err = w.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: pod.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(echoPort)))
	s.staysAwakeFor("mesh")
	if _, err := w.Hibernate(s.ctx(), id); err == nil || !strings.Contains(err.Error(), "nat") {
		t.Errorf("hibernate: %v", err)
	}
	s.must(exchange(s.dial(echoPort), "hello"))
	same := func(when string) {
		if now := inPod(look); now != before {
			t.Errorf("%s, the pod is\n%s\nand was\n%s", when, now, before)
		}
	}
	same("while it runs")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Remove(ctx, id); err != nil {
		t.Error(err)
	}
	same("when it has ended")
}

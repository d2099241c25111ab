package network

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// cniPod is a pod as an engine makes it: a namespace, and what a list of plugins does to it.
type cniPod struct {
	harness.Pod
	t     *testing.T
	world *harness.World
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	conf  *libcni.RuntimeConf
	found string // the node before
}

// node is a world whose CNI has made a pod with published ports before. Bridges that a test's pods have left go with it.
func node(t *testing.T) *harness.World {
	t.Helper()
	w := harness.New(t, harness.Options{Daemon: true, Published: true, Settings: map[string]string{"mode": `"manual"`}})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := w.Shell(ctx, "for b in cni1 cni2 cni3; do ip link delete $b 2>/dev/null || true; done"); err != nil {
			t.Error(err)
		}
	})
	return w
}

// join makes a pod, which the test ends. In the plugins' list, NET stands for the first two bytes of the pod's addresses.
func join(t *testing.T, w *harness.World, name, plugins string, ports ...map[string]any) *cniPod {
	t.Helper()
	first := w.NodeIP()[:strings.Index(w.NodeIP()[3:], ".")+3]
	plugins = strings.ReplaceAll(plugins, "NET", first)
	p := &cniPod{Pod: harness.Pod{Name: name, Path: "/run/netns/" + name}, t: t, world: w}
	var err error
	if p.cni, p.list, err = w.CNIOf(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, plugins)); err != nil {
		t.Fatal(err)
	}
	p.conf = &libcni.RuntimeConf{ContainerID: w.Name + "-" + name, NetNS: p.Path, IfName: "eth0"}
	if ports != nil {
		p.conf.CapabilityArgs = map[string]any{"portMappings": ports}
	}
	p.add()
	p.remove() // bridges and the plugins' shared chains stay, as on a node that has had a pod before
	p.found = p.node()
	p.add()
	return p
}

func (p *cniPod) add() {
	p.t.Helper()
	ctx := p.t.Context()
	if _, err := p.world.Output(ctx, "ip", "netns", "add", p.Name); err != nil {
		p.t.Fatal(err)
	}
	added, err := p.cni.AddNetworkList(ctx, p.list, p.conf)
	if err != nil {
		p.t.Fatal(err)
	}
	result, err := types100.NewResultFromResult(added)
	if err != nil || len(result.IPs) == 0 {
		p.t.Fatal(result, err)
	}
	p.IP = result.IPs[0].Address.IP.String()
}

func (p *cniPod) remove() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.cni.DelNetworkList(ctx, p.list, p.conf); err != nil {
		p.t.Errorf("CNI DEL: %v", err)
	}
	if _, err := p.world.Output(ctx, "ip", "netns", "delete", p.Name); err != nil {
		p.t.Error(err)
	}
}

// leave ends the container and its pod, and looks that nothing is left of it on the node.
func (p *cniPod) leave() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.world.Remove(ctx, id); err != nil {
		p.t.Error(err)
	}
	p.remove()
	left := linesBeyond(p.node(), p.found)
	for begin := time.Now(); left != "" && time.Since(begin) < leaveWithin; left = linesBeyond(p.node(), p.found) {
		time.Sleep(leaveWithin / 20) // the kernel takes a while
	}
	if left != "" {
		p.t.Errorf("left of the pod:\n%s", left)
	}
}

const leaveWithin = 10 * time.Second

// linesBeyond are those of a that b has not.
func linesBeyond(a, b string) string {
	has := map[string]bool{}
	for line := range strings.Lines(b) {
		has[line] = true
	}
	var more strings.Builder
	for line := range strings.Lines(a) {
		if !has[line] {
			more.WriteString(line)
		}
	}
	return more.String()
}

// node is what plugins change on it.
func (p *cniPod) node() string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := p.world.Shell(ctx, `nft --stateless list ruleset; iptables-save -t nat | grep -v '^[#:]'; ip rule
ip -4 route show table all | sed 's/ linkdown//' # a bridge without pods becomes that some time later
ip -br link | cut -d@ -f1 | cut -d' ' -f1; find /var/lib/cni -type f | sed "s/last_reserved_ip.*//"`)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// check is CNI's CHECK of all plugins.
func (p *cniPod) check(when string) {
	p.t.Helper()
	if err := p.cni.CheckNetworkList(p.t.Context(), p.list, p.conf); err != nil {
		p.t.Errorf("CNI CHECK, %s: %v", when, err)
	}
}

// inside runs a command in the pod's namespace.
func (p *cniPod) inside(command string) string {
	p.t.Helper()
	out, err := p.world.Shell(p.t.Context(), "ip netns exec "+p.Name+" sh -ec '"+command+"'")
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

const bridgePlugin = `{"type": "bridge", "bridge": "cni1", "isGateway": true, "hairpinMode": true, %s
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "NET.253.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`

func bridge(more string) string { return fmt.Sprintf(bridgePlugin, more) }

const ptpPlugin = `{"type": "ptp", "ipMasq": true, "mtu": 1450,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "NET.250.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`

// However CNI's plugins make a pod, its container sleeps and wakes, on connections that live through it and by new ones; CHECK
// finds the pod as it was made, awake and asleep; large answers fit the path's MTU; and DEL leaves nothing.
func TestPodsByCNI(t *testing.T) {
	w := node(t)
	for name, c := range map[string]struct {
		plugins string
		mtu     int
	}{
		"bridge":   {bridge(`"ipMasq": false,`), 1500},
		"ipmasq":   {bridge(`"ipMasq": true,`), 1500},
		"firewall": {bridge(`"ipMasq": true,`) + `, {"type": "firewall"}`, 1500},
		"mtu1400":  {strings.NewReplacer("cni1", "cni2", "253", "252").Replace(bridge(`"mtu": 1400,`)), 1400},
		"mtu9000":  {strings.NewReplacer("cni1", "cni3", "253", "251").Replace(bridge(`"mtu": 9000,`)), 9000},
		"ptp":      {ptpPlugin, 1450},
	} {
		t.Run(name, func(t *testing.T) {
			p := join(t, w, name, c.plugins)
			defer p.leave()
			p.serves(c.mtu)
		})
	}
}

// serves runs a server in the pod, and has it sleep and wake.
func (p *cniPod) serves(mtu int) {
	p.t.Helper()
	s := &server{t: p.t, world: p.world, pod: p.Pod, web: p.world.HTTP()}
	_, err := p.world.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: p.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.must(p.world.WaitPort(s.ctx(), s.address(echoPort)))
	if got := p.inside("cat /sys/class/net/hib0/mtu"); got != fmt.Sprint(mtu) {
		p.t.Errorf("the link's MTU is %s, the pod's %d", got, mtu)
	}
	p.check("awake")
	open := s.dial(echoPort)
	s.must(exchange(open, "hello"))
	for i := range 3 {
		asleep := s.sleep()
		p.check("asleep")
		if i == 1 {
			s.must(exchange(s.dial(echoPort), "held"))
			s.woken(asleep, "connection")
		} else {
			s.must(exchange(open, "packet"))
			s.woken(asleep, "packet")
		}
		large := make([]byte, 1<<20)
		rand.Read(large)
		text := bytes.Map(func(r rune) rune { return 'a' + r%26 }, large)
		s.must(exchange(open, string(text)))
		p.check("awake again")
		for _, r := range s.ladder() {
			if !r.GetOk() || r.GetRepaired() {
				p.t.Errorf("ladder: %v", r)
			}
		}
	}
}

// Calico's pods: an address /32, and a gateway on the link's own addresses that the node answers for.
func TestRoutedPod(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	first := w.NodeIP()[:strings.Index(w.NodeIP()[3:], ".")+3]
	p := &cniPod{Pod: harness.Pod{Name: "routed", Path: "/run/netns/routed", IP: first + ".253.7"}, t: t, world: w}
	_, err := w.Shell(t.Context(), fmt.Sprintf(`set -e
ip netns add routed
ip link add cali0 type veth peer name eth0 netns routed
ip link set cali0 address ee:ee:ee:ee:ee:ee up
echo 1 > /proc/sys/net/ipv4/conf/cali0/proxy_arp
echo 0 > /proc/sys/net/ipv4/neigh/cali0/proxy_delay
ip route add %[1]s/32 dev cali0 scope link
ip route add 169.254.1.1 dev plain0 # proxy ARP answers only for what has a way elsewhere, as by a node's default route
ip -n routed link set lo up
ip -n routed addr add %[1]s/32 dev eth0
ip -n routed link set eth0 up
ip -n routed route add 169.254.1.1 dev eth0 scope link
ip -n routed route add default via 169.254.1.1 dev eth0`, p.IP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Remove(ctx, id); err != nil {
			t.Error(err)
		}
		if _, err := w.Shell(ctx, "ip route del 169.254.1.1; ip netns delete routed; while ip link show cali0 >/dev/null 2>&1; do sleep 0.05; done"); err != nil {
			t.Error(err)
		}
	}()
	p.list = &libcni.NetworkConfigList{}
	p.cni = libcni.NewCNIConfig(nil, nil)
	s := &server{t: t, world: w, pod: p.Pod, web: w.HTTP()}
	_, err = w.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: p.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(echoPort)))
	before := p.inside("ip -4 route show table main; ip -br -4 addr show eth0")
	s.livesHere()
	if after := p.inside("ip -4 route show table main; ip -br -4 addr show eth0"); after != before {
		t.Errorf("the pod has changed:\n%s\nwas:\n%s", after, before)
	}
}

// A pod with a second interface runs with both, as under any runtime, and is never put to sleep: the link carries one.
func TestTwoInterfaces(t *testing.T) {
	w := node(t)
	p := join(t, w, "two", bridge(`"ipMasq": false,`))
	defer p.leave()
	p.inside("ip link add eth1 type veth peer name far; ip addr add 10.255.255.7/24 dev eth1; ip link set eth1 up")
	s := &server{t: t, world: w, pod: p.Pod, web: w.HTTP()}
	_, err := w.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: p.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(echoPort)))
	s.staysAwakeFor("interfaces")
	if _, err := w.Hibernate(s.ctx(), id); err == nil || !strings.Contains(err.Error(), "eth1") {
		t.Errorf("hibernate: %v", err)
	}
	s.must(exchange(s.dial(echoPort), "hello"))
}

// staysAwakeFor wants a reason among those that keep the container awake.
func (s *server) staysAwakeFor(code string) {
	s.t.Helper()
	now, err := s.world.Status(s.ctx(), id)
	s.must(err)
	var have []string
	for _, b := range now.GetBlockers() {
		have = append(have, b.GetCode())
	}
	if !slices.Contains(have, code) || now.GetState() != "awake" {
		s.t.Errorf("%s: kept awake by %v, not by %s", now.GetState(), have, code)
	}
}

// A namespace with nothing but loopback is no network: nobody could wake who sleeps there, so only a person puts it to sleep.
func TestLoopbackOnly(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	if _, err := w.Shell(t.Context(), "ip netns add alone && ip -n alone link set lo up"); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, world: w, pod: harness.Pod{Name: "alone", Path: "/run/netns/alone", IP: "127.0.0.1"}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Remove(ctx, id); err != nil {
			t.Error(err)
		}
		if err := w.RemovePod(ctx, s.pod); err != nil {
			t.Error(err)
		}
	})
	_, err := w.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: s.pod.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.staysAwakeFor("no-network")
	asleep := s.sleep()
	if asleep.GetGate() != "none" {
		t.Errorf("the gate is %s", asleep.GetGate())
	}
	_, err = w.Wake(s.ctx(), id)
	s.must(err)
	s.woken(asleep, "request")
}

// A port of the node whose rules were taken away is forwarded again by the wake's ladder, each time, and by nothing else; when
// CNI has taken the pod down, nothing is put back.
func TestMissingPortMappingIsMended(t *testing.T) {
	w := node(t)
	port := 20000 + os.Getpid()%10000 // in a namespace of the world's own
	p := join(t, w, "published", bridge(`"ipMasq": false,`)+`, {"type": "portmap", "capabilities": {"portMappings": true}}`,
		map[string]any{"hostPort": port, "containerPort": echoPort, "protocol": "tcp"})
	defer p.leave()
	s := &server{t: t, world: w, pod: p.Pod, web: w.HTTP()}
	_, err := w.Run(s.ctx(), harness.Container{ID: id, Image: "testserver", NetNS: p.Path, Detach: true, Flags: []string{"--null-io"}})
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(echoPort)))
	at := net.JoinHostPort(w.NodeIP(), fmt.Sprint(port))
	events := s.events()
	for i := range 3 {
		for _, broken := range []bool{false, true} {
			s.sleep()
			if broken {
				_, err := w.Shell(s.ctx(), []string{
					"iptables -t nat -F CNI-HOSTPORT-DNAT", "nft flush ruleset", "iptables -t nat -F PREROUTING",
				}[i])
				s.must(err)
			}
			s.must(exchange(s.dial(echoPort), "not by the port"))
			for name, r := range s.ladder() {
				if r.GetRepaired() != (broken && name == "port mapping") || !r.GetOk() {
					t.Errorf("round %d, broken %v: %v", i, broken, r)
				}
			}
			c, err := w.Dial(s.ctx(), "tcp", at)
			s.must(err)
			s.must(exchange(c, "by the port"))
			s.must(c.Close())
		}
		p.check("mended")
	}
	s.toldEverywhere("port mapping", events)
	// CNI has begun to take the pod down: it no longer remembers it.
	entry := w.Path(filepath.Join("/var/lib/cni/results", p.Name+"-"+p.conf.ContainerID+"-eth0"))
	s.sleep()
	_, err = w.Shell(s.ctx(), "iptables -t nat -F CNI-HOSTPORT-DNAT")
	s.must(err)
	s.must(os.Rename(entry, entry+".aside"))
	_, err = w.Wake(s.ctx(), id)
	s.must(err)
	rungs := s.ladder()
	if r := rungs["port mapping"]; r.GetRepaired() || !r.GetOk() {
		t.Errorf("%v", r)
	}
	if out, err := w.Shell(s.ctx(), "iptables -t nat -S CNI-HOSTPORT-DNAT"); err != nil || strings.Contains(out, fmt.Sprint(port)) {
		t.Errorf("put back: %s %v", out, err)
	}
	s.must(os.Rename(entry+".aside", entry))
}

// events gathers the rungs that were repaired, as who watches is told of them.
func (s *server) events() <-chan string {
	s.t.Helper()
	shim, hangUp, err := s.world.Shim(s.ctx(), id)
	s.must(err)
	s.t.Cleanup(hangUp)
	stream, err := shim.Watch(s.ctx(), &shimv1.WatchRequest{})
	s.must(err)
	repaired := make(chan string, 100)
	go func() {
		defer close(repaired)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			for _, r := range e.GetTransition().GetLadder() {
				if r.GetRepaired() {
					repaired <- r.GetName()
				}
			}
		}
	}()
	return repaired
}

// toldEverywhere wants a repaired rung named in events, in containerd's log and by hibernatectl.
func (s *server) toldEverywhere(rung string, events <-chan string) {
	s.t.Helper()
	if name, ok := <-events; name != rung {
		s.t.Errorf("events tell of %q: %v", name, ok)
	}
	log, err := os.ReadFile(s.world.Containerd.LogFile)
	s.must(err)
	if !slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return strings.Contains(line, "ladder") && strings.Contains(line, fmt.Sprintf("rung=%q", rung)) && strings.Contains(line, "repaired=true")
	}) {
		s.t.Error("the log doesn't tell of it")
	}
	said, err := s.world.Output(s.ctx(), "hibernatectl", "--config", s.world.ConfigFile(), "inspect", id)
	s.must(err)
	if !slices.ContainsFunc(strings.Split(said, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), rung+" ") && strings.Contains(line, " repaired ")
	}) {
		s.t.Errorf("hibernatectl says:\n%s", said)
	}
}

// ladder waits for that of the newest wake.
func (s *server) ladder() map[string]*shimv1.Rung {
	s.t.Helper()
	rungs := map[string]*shimv1.Rung{}
	eventually(s.t, "the ladder is climbed", func() bool {
		now, err := s.world.Status(s.ctx(), id)
		s.must(err)
		for _, r := range now.GetLastWake().GetLadder() {
			rungs[r.GetName()] = r
		}
		return len(rungs) > 0
	})
	return rungs
}

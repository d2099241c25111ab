package network

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// What the node tracks of an address's earlier holder is forgotten when a container starts there, and told. At wakes nothing is
// forgotten: it would cut off who is connected.
func TestEarlierHolderIsForgottenOnce(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	pod, err := w.NewPod(t.Context(), "inherited")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(w.NodeNetNS())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	node, err := netlink.NewHandleAt(netns.NsHandle(int(f.Fd())), unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	entry := func() *netlink.ConntrackFlow {
		client, own := net.ParseIP(w.ClientIP()).To4(), net.ParseIP(pod.IP).To4()
		return &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 3600, ProtoInfo: &netlink.ProtoInfoTCP{State: 3},
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: client, SrcPort: 4000, DstIP: own, DstPort: 80},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: own, SrcPort: 80, DstIP: client, DstPort: 4000},
		}
	}
	tracked := func() bool {
		list, err := node.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if one.Forward.SrcPort == 4000 && one.Forward.DstPort == 80 {
				return true
			}
		}
		return false
	}
	if err := node.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, entry()); err != nil || !tracked() {
		t.Fatalf("the node tracks nothing: %v", err)
	}
	s := serve(t, w, pod)
	now, err := w.Status(s.ctx(), id)
	s.must(err)
	if r := mended(now, "conntrack"); !r.GetRepaired() || tracked() {
		t.Errorf("told: %v; still there: %v", r, tracked())
	}
	s.must(node.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, entry()))
	s.livesHere()
	if !tracked() {
		t.Error("a wake has cut a connection off")
	}
}

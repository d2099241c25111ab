package network_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/hibernate-runtime/hibernate/network"
)

// A sandbox gets what it begins with although the pod has lost its interface, and the link with it; what is missing is told.
func TestPrepareWithoutThePodsInterface(t *testing.T) {
	for name, also := range map[string]string{"interface": "eth0", "link, too": "hib0"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.open(t)
			inner := handle(t, w.inner)
			addresses := func() []netlink.Addr {
				list, err := inner.AddrList(get(t, inner, "eth0"), netlink.FAMILY_V4)
				must(t, err)
				return list
			}
			if list := addresses(); len(list) > 0 {
				t.Fatalf("I has addresses before: %v", list)
			}
			h := handle(t, w.pod)
			must(t, h.LinkDel(get(t, h, "eth0")))
			if also != "eth0" {
				must(t, h.LinkDel(get(t, h, also)))
			}
			err := l.PrepareInner(t.Context())
			if !errors.Is(err, network.ErrOutside) || !strings.Contains(err.Error(), "interface eth0 of P is missing") {
				t.Fatalf("it is told as: %v", err)
			}
			if list := addresses(); len(list) != 1 || !list[0].IP.Equal(podAddr.AsSlice()) {
				t.Errorf("addresses in I: %v", list)
			}
			must(t, l.SetGate(t.Context(), opened))
			must(t, l.Connect(t.Context()))
		})
	}
}

// What another has by the name of the link can't be the sandbox's.
func TestPrepareBesideAnothersLink(t *testing.T) {
	w := newWorld(t)
	l := w.open(t)
	h := handle(t, w.pod)
	must(t, h.LinkDel(get(t, h, "hib0")))
	must(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: named("hib0")}))
	if err := l.PrepareInner(t.Context()); !errors.Is(err, network.ErrShared) || errors.Is(err, network.ErrOutside) {
		t.Errorf("it is told as: %v", err)
	}
	must(t, network.Remove(t.Context(), network.Options{Pod: w.pod}))
	must(t, h.LinkDel(get(t, h, "hib0"))) // which is there still
	must(t, l.PrepareInner(t.Context()))
}

// While keep-alives are kept, others may put into the table what then can't be taken away. Nothing is kept from the sandbox
// for that.
func TestKeepingEndsWhateverStays(t *testing.T) {
	w, l, _ := awake(t)
	c := nft(t, w.pod)
	table := &nftables.Table{Name: "hibernate", Family: nftables.TableFamilyINet}
	must(t, c.AddSet(&nftables.Set{Table: table, Name: "probes", KeyType: nftables.TypeIPAddr}, nil))
	must(t, c.Flush())
	rules := func() int {
		list, err := c.GetRules(table, &nftables.Chain{Name: "keep-alives"})
		must(t, err)
		return len(list)
	}
	must(t, l.HoldKeepAlives(t.Context()))
	if rules() == 0 {
		t.Fatal("nothing is kept")
	}
	conn, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer conn.Close()
	if _, err := l.LearnConnections(t.Context(), []network.Flow{flowOf(conn)}); err == nil {
		t.Fatal("the other's set was taken for the link's own")
	}
	must(t, l.ReleaseKeepAlives(t.Context()))
	if n := rules(); n != 0 {
		t.Errorf("%d rules take what is the sandbox's", n)
	}
	sets, err := c.GetSets(table)
	must(t, err)
	if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == "probes" }) {
		t.Fatal("the other's set was to stay, else this shows nothing")
	}
}

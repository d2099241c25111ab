package network_test

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// What a user, or an engine for him, has set in the pod stays as it is, while the link is there and when it is gone. Without
// IPv6 in the pod, the link has none.
func TestUsersSysctlsAreObeyed(t *testing.T) {
	w := newWorld(t)
	theirs := map[string]string{
		"net/ipv4/ip_unprivileged_port_start": "80", "net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1",
		"net/ipv4/tcp_keepalive_time": "77", "net/ipv4/ping_group_range": "0\t100", "net/ipv4/ip_local_port_range": "40000\t50000",
		"net/core/somaxconn": "100",
	}
	inside(t, w.pod, func() (any, error) {
		for name, value := range theirs {
			if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	same := func(when string, but ...string) {
		t.Helper()
		for name, value := range theirs {
			have := inside(t, w.pod, func() (string, error) {
				b, err := os.ReadFile("/proc/sys/" + name)
				return strings.TrimSpace(string(b)), err
			})
			if have != value && !strings.Contains(strings.Join(but, " "), name) {
				t.Errorf("%s: %s is %q, was %q", when, name, have, value)
			}
		}
	}
	w, l, s := awakeIn(t, w)
	const held100 = "net/core/somaxconn" // a listener's backlog is the connections that it holds
	same("awake", held100)
	if list, err := handle(t, w.pod).AddrList(get(t, handle(t, w.pod), "hib0"), netlink.FAMILY_V6); err != nil || len(list) > 0 {
		t.Errorf("IPv6 at hib0: %v, %v", list, err)
	}
	asleep(t, l, s, held(echoPort))
	same("asleep", held100)
	woken(t, l, s)
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK || r.Repaired {
			t.Errorf("%+v", r)
		}
	}
	must(t, l.Remove(t.Context()))
	same("removed")
}

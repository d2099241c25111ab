package network

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// setting is a sysctl, its name written as a path ("net/ipv4/…").
type setting struct {
	name, value string
	optional    bool // its absence (no IPv6) is no error
}

func readSysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func writeSysctl(name, value string) error {
	f, err := os.OpenFile("/proc/sys/"+name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write sysctl: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("write sysctl %s=%s: %w", name, value, err)
	}
	return nil
}

// checkSettings runs inside a namespace and names the first that differs.
func checkSettings(want []setting) error {
	for _, s := range want {
		have, err := readSysctl(s.name)
		if s.optional && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if have != s.value {
			return fmt.Errorf("sysctl %s is %s, not %s", s.name, have, s.value)
		}
	}
	return nil
}

// applySettings runs inside a namespace.
func applySettings(want []setting) error {
	for _, s := range want {
		write := writeSysctl
		if s.name == forwarding6 || s.name == outerForwarding6 {
			write = forwardIPv6
		}
		err := write(s.name, s.value)
		if err != nil && !(s.optional && errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// outerSettings are those of hib0: they go with it.
func outerSettings(allRPFilter string, six bool) []setting {
	conf, conf6 := "net/ipv4/conf/"+outerName+"/", "net/ipv6/conf/"+outerName+"/"
	// The sandbox's packets carry an address that is P's own. rp_filter is the
	// larger of this one and "all": strict would drop them, loose lets them pass.
	rpFilter := "0"
	if allRPFilter != "0" {
		rpFilter = "2"
	}
	list := []setting{
		{name: conf + "accept_local", value: "1"},
		{name: conf + "forwarding", value: "1"},
		{name: conf + "rp_filter", value: rpFilter},
		{name: conf + "accept_redirects", value: "0"},
		{name: conf6 + "addr_gen_mode", value: "1", optional: true},
		{name: conf6 + "accept_ra", value: "0", optional: true},
	}
	list = append(list, neighbourSettings("net/ipv4/neigh/"+outerName+"/")...)
	if !six {
		return list
	}
	list = append(list,
		setting{name: conf6 + "disable_ipv6", value: "0"}, // whatever is P's default: its interface has IPv6
		setting{name: outerForwarding6, value: "1"},       // the fast path's programs are told ways from here only then
		setting{name: conf6 + "accept_redirects", value: "0"})
	return append(list, neighbourSettings("net/ipv6/neigh/"+outerName+"/")...)
}

// neighbourSettings have a miss told to netlink listeners, each second for ten minutes, and never asked on the wire.
func neighbourSettings(neigh string) []setting {
	return []setting{
		{name: neigh + "app_solicit", value: "600"},
		{name: neigh + "mcast_solicit", value: "0"},
		{name: neigh + "ucast_solicit", value: "0"},
		{name: neigh + "unres_qlen_bytes", value: strconv.Itoa(keptBytes)},
	}
}

// innerSettings keep I's kernel from answering for the sandbox.
func (l *Link) innerSettings() []setting {
	conf6 := "net/ipv6/conf/" + innerName + "/"
	list := []setting{
		{name: "net/ipv4/conf/all/arp_ignore", value: "8"},
		{name: conf6 + "addr_gen_mode", value: "1", optional: true},
		{name: conf6 + "accept_ra", value: "0", optional: true},
	}
	if l.attachment.carries(ip6) {
		list = append(list, setting{name: conf6 + "disable_ipv6", value: "0"})
	}
	return list
}

// outerForwarding6 has no say in what P's stack forwards.
const outerForwarding6 = "net/ipv6/conf/" + outerName + "/forwarding"

// forwardIPv6 runs inside a namespace. Only all interfaces together forward; what else comes with that for each of them is
// put back: that it is a router's, and doesn't listen to others. What routers have told stays known meanwhile, also when
// only one interface becomes a router's.
func forwardIPv6(name, value string) error {
	if have, err := readSysctl(name); err != nil || have == value {
		return err
	}
	forwarding, err := ofInterfaces("forwarding")
	if err != nil {
		return err
	}
	accepting, err := ofInterfaces("accept_ra")
	if err != nil {
		return err
	}
	var both []setting
	for _, s := range accepting {
		both = append(both, setting{name: s.name, value: "2", optional: true}) // as a router, too
	}
	err = applySettings(both)
	if err == nil {
		err = writeSysctl(name, value)
	}
	if name != forwarding6 {
		forwarding = nil
	}
	return errors.Join(err, applySettings(append(forwarding, accepting...)))
}

// ofInterfaces reads one of IPv6's sysctls of each interface, and of those to come.
func ofInterfaces(name string) (list []setting, err error) {
	entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return nil, fmt.Errorf("interfaces with IPv6: %w", err)
	}
	for _, e := range entries {
		path := "net/ipv6/conf/" + e.Name() + "/" + name
		if e.Name() == "all" {
			continue
		}
		value, err := readSysctl(path)
		if errors.Is(err, os.ErrNotExist) { // it has gone
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, setting{name: path, value: value, optional: true})
	}
	return list, nil
}

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
		err := writeSysctl(s.name, s.value)
		if err != nil && !(s.optional && errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// outerSettings are those of hib0: they go with it.
func outerSettings(allRPFilter string) []setting {
	conf, neigh := "net/ipv4/conf/"+outerName+"/", "net/ipv4/neigh/"+outerName+"/"
	// The sandbox's packets carry an address that is P's own. rp_filter is the
	// larger of this one and "all": strict would drop them, loose lets them pass.
	rpFilter := "0"
	if allRPFilter != "0" {
		rpFilter = "2"
	}
	return []setting{
		{name: conf + "accept_local", value: "1"},
		{name: conf + "forwarding", value: "1"},
		{name: conf + "rp_filter", value: rpFilter},
		{name: conf + "accept_redirects", value: "0"},
		// A miss is told to netlink listeners, each second for ten minutes, and
		// never asked on the wire.
		{name: neigh + "app_solicit", value: "600"},
		{name: neigh + "mcast_solicit", value: "0"},
		{name: neigh + "ucast_solicit", value: "0"},
		{name: neigh + "unres_qlen_bytes", value: strconv.Itoa(keptBytes)},
		{name: "net/ipv6/conf/" + outerName + "/addr_gen_mode", value: "1", optional: true},
		{name: "net/ipv6/conf/" + outerName + "/accept_ra", value: "0", optional: true},
	}
}

// innerSettings keep I's kernel from answering for the sandbox.
func innerSettings() []setting {
	return []setting{
		{name: "net/ipv4/conf/all/arp_ignore", value: "8"},
		{name: "net/ipv6/conf/" + innerName + "/addr_gen_mode", value: "1", optional: true},
	}
}

package network

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	recordPrefix  = "hibernate "
	wantBacklog   = 65535
	kernelBacklog = 4096
)

// record holds sysctls of P that are not the link's own, as they were found. It
// is kept in hib0's alias, so it lives exactly as long as what it undoes.
type record []setting

func foreignNames(primary string) []string {
	return []string{forwardingOf(primary), "net/core/somaxconn", "net/ipv4/tcp_abort_on_overflow"}
}

// forwarding6 has all interfaces forward IPv6; there is none for one alone before Linux 6.17.
const forwarding6 = "net/ipv6/conf/all/forwarding"

func forwardingOf(name string) string { return "net/ipv4/conf/" + name + "/forwarding" }

// readRecord runs inside P, before anything is changed.
func readRecord(primary string, six bool) (record, error) {
	var r record
	names := foreignNames(primary)
	if six {
		names = append(names, forwarding6)
	}
	for _, name := range names {
		value, err := readSysctl(name)
		if err != nil {
			return nil, err
		}
		r = append(r, setting{name: name, value: value})
	}
	return r, nil
}

// defaultRecord runs inside P when our rules are there but hib0 and its alias
// are gone (I was destroyed first): what a fresh namespace has.
func defaultRecord(primary string, six bool) (record, error) {
	forwarding, err := readSysctl("net/ipv4/conf/default/forwarding")
	if err != nil {
		return nil, err
	}
	names := foreignNames(primary)
	r := record{
		{name: names[0], value: forwarding},
		{name: names[1], value: strconv.Itoa(kernelBacklog)},
		{name: names[2], value: "0"},
	}
	if six {
		r = append(r, setting{name: forwarding6, value: "0"})
	}
	return r, nil
}

func (r record) String() string {
	var words []string
	for _, s := range r {
		words = append(words, s.name+"="+s.value)
	}
	return recordPrefix + strings.Join(words, " ")
}

func parseRecord(alias string) (record, error) {
	rest, ok := strings.CutPrefix(alias, recordPrefix)
	if !ok {
		return nil, fmt.Errorf("alias of %s is %q, not this package's", outerName, alias)
	}
	var r record
	for _, word := range strings.Fields(rest) {
		name, value, ok := strings.Cut(word, "=")
		if !ok || !strings.HasPrefix(name, "net/") || strings.Contains(name, "..") {
			return nil, fmt.Errorf("alias of %s: bad entry %q", outerName, word)
		}
		r = append(r, setting{name: name, value: value})
	}
	return r, nil
}

// forwarded tells whether P forwarded packets of a family before we came: from its interface, and of IPv6 from all.
func (r record) forwarded(f *family) bool {
	return slices.ContainsFunc(r, func(s setting) bool {
		return strings.HasSuffix(s.name, "/forwarding") && (s.name == forwarding6) == (f == ip6) && s.value != "0"
	})
}

func (r record) has(name string) bool {
	return slices.ContainsFunc(r, func(s setting) bool { return s.name == name })
}

// wanted is what these sysctls are to be while the link lives.
func (r record) wanted(primary string) []setting {
	backlog := wantBacklog
	for _, s := range r {
		if n, err := strconv.Atoi(s.value); err == nil && strings.HasSuffix(s.name, "/somaxconn") {
			backlog = max(backlog, n)
		}
	}
	names := foreignNames(primary)
	want := []setting{
		{name: names[0], value: "1", optional: true}, // it goes with the interface
		{name: names[1], value: strconv.Itoa(backlog)},
		// A full backlog answers with a reset, rather than with silence after a
		// completed handshake.
		{name: names[2], value: "1"},
	}
	if r.has(forwarding6) {
		want = append(want, setting{name: forwarding6, value: "1"})
	}
	return want
}

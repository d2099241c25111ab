package network

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func markRule(f *family, pref int, mark uint32, table int) *netlink.Rule {
	r, mask := netlink.NewRule(), markMask
	r.Family, r.Priority, r.Mark, r.Mask, r.Table = f.netlink, pref, mark, &mask, table
	return r
}

func localRule(f *family, pref int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = f.netlink, pref, unix.RT_TABLE_LOCAL
	return r
}

func sandboxRule(f *family) *netlink.Rule {
	return markRule(f, prefSandbox, MarkSandbox, tableSandbox)
}

// ours says whether a link was made here.
func (s *side) ours() (bool, error) {
	for _, f := range families {
		if has, err := s.hasRule(sandboxRule(f)); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// ourRules come before the kernel's rule for local addresses, which moves from
// 0 to 100: the pod's address is P's own, and yet routed on.
func ourRules(f *family) []*netlink.Rule {
	return []*netlink.Rule{
		localRule(f, prefKernelLocal),
		sandboxRule(f),
		markRule(f, prefLocal, MarkLocal, tableLocal),
	}
}

func kernelRule(f *family) *netlink.Rule {
	r := localRule(f, 0)
	r.Protocol = unix.RTPROT_KERNEL // as the kernel made it
	return r
}

func sameRule(a netlink.Rule, b *netlink.Rule) bool {
	return a.Priority == b.Priority && a.Table == b.Table && a.Mark == b.Mark &&
		a.Src == nil && a.Dst == nil && a.IifName == "" && a.OifName == "" && !a.Invert
}

func (s *side) hasRule(want *netlink.Rule) (bool, error) {
	list, err := s.route.RuleList(want.Family)
	if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list routing rules: %w", err)
	}
	for _, r := range list {
		if sameRule(r, want) {
			return true, nil
		}
	}
	return false, nil
}

func (l *Link) checkPolicy() error {
	for _, f := range l.attachment.families() {
		if err := l.pod.checkRules(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return l.checkOuterSettings()
}

func (s *side) checkRules(f *family) error {
	for _, want := range ourRules(f) {
		has, err := s.hasRule(want)
		if err != nil {
			return err
		}
		if !has {
			return fmt.Errorf("routing rule %d to table %d is missing", want.Priority, want.Table)
		}
	}
	first, err := s.hasRule(localRule(f, 0))
	if err != nil {
		return err
	}
	if first {
		return errors.New("the kernel's rule for local addresses comes first")
	}
	return nil
}

func (l *Link) repairPolicy() error {
	if err := l.applyOuterSettings(); err != nil {
		return err
	}
	for _, f := range l.attachment.families() {
		for _, want := range ourRules(f) {
			if err := l.pod.addRule(want); err != nil {
				return err
			}
		}
		if err := l.pod.delRule(localRule(f, 0)); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) addRule(r *netlink.Rule) error {
	has, err := s.hasRule(r)
	if err != nil || has {
		return err
	}
	if err := s.route.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add routing rule %d: %w", r.Priority, err)
	}
	return nil
}

// delRule removes every copy of a rule.
func (s *side) delRule(r *netlink.Rule) error {
	for {
		has, err := s.hasRule(r)
		if err != nil || !has {
			return err
		}
		if err := s.route.RuleDel(r); err != nil {
			return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
		}
	}
}

// outerWants runs inside P.
func (l *Link) outerWants() ([]setting, error) {
	all, err := readSysctl("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return nil, err
	}
	return append(outerSettings(all, l.attachment.carries(ip6)), l.found.wanted(l.attachment.Interface)...), nil
}

func (l *Link) checkOuterSettings() error { return l.withOuterWants(checkSettings) }
func (l *Link) applyOuterSettings() error { return l.withOuterWants(applySettings) }

func (l *Link) withOuterWants(do func([]setting) error) error {
	err := enter(l.pod.ns, func() error {
		want, err := l.outerWants()
		if err != nil {
			return err
		}
		return do(want)
	})
	if err != nil {
		return fmt.Errorf("in P: %w", err)
	}
	return nil
}

// ourRoutes go with hib0. A local route may name any interface; this one needs
// no loopback that is up.
func (l *Link) ourRoutes(index int) []*netlink.Route {
	var list []*netlink.Route
	for _, f := range l.attachment.families() {
		list = append(list, &netlink.Route{
			Family: f.netlink, LinkIndex: index, Table: tableLocal, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Dst: toIPNet(f.all),
		})
	}
	for _, a := range l.attachment.carried() {
		list = append(list, &netlink.Route{
			Family: familyOf(a).netlink, LinkIndex: index, Table: tableSandbox, Scope: netlink.SCOPE_LINK, Dst: host(a),
		})
	}
	return list
}

// silence ends the sandbox's table, and outlives hib0: while no sandbox's I is there, as after a crash, what is marked
// for it is dropped. Else it would fall through to P's own sockets, and be answered by a reset.
func silence(f *family) *netlink.Route {
	return &netlink.Route{
		Family: f.netlink, Table: tableSandbox, Type: unix.RTN_BLACKHOLE, Priority: lastMetric, Dst: toIPNet(f.all),
	}
}

const lastMetric = 1 << 16

func (l *Link) checkSilence() error {
	for _, f := range l.attachment.families() {
		want := silence(f)
		have, err := l.pod.route.RouteListFiltered(f.netlink, want, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return fmt.Errorf("routes of table %d: %w", tableSandbox, err)
		}
		if !hasRoute(have, want) {
			return fmt.Errorf("the last route of table %d is missing for %s", tableSandbox, f.name)
		}
	}
	return nil
}

func (l *Link) checkRoutes() error {
	outer, err := l.outer()
	if err != nil {
		return err
	}
	for _, want := range l.ourRoutes(outer.Attrs().Index) {
		filter := &netlink.Route{Table: want.Table, LinkIndex: want.LinkIndex}
		have, err := l.pod.route.RouteListFiltered(want.Family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		if err != nil {
			return fmt.Errorf("routes of table %d: %w", want.Table, err)
		}
		if !hasRoute(have, want) {
			return fmt.Errorf("route to %s in table %d is missing", want.Dst, want.Table)
		}
	}
	return errors.Join(l.checkSilence(), l.checkDefaultRoute(ip4), l.checkDefaultRoute(ip6))
}

func hasRoute(list []netlink.Route, want *netlink.Route) bool {
	for _, r := range list {
		if isDefault(r.Dst) == isDefault(want.Dst) && (isDefault(r.Dst) || r.Dst.String() == want.Dst.String()) {
			return true
		}
	}
	return false
}

// checkDefaultRoute: where CNI gave a default route, there is to be one still.
func (l *Link) checkDefaultRoute(f *family) error {
	if l.attachment.defaultRoute(f) == nil {
		return nil
	}
	list, err := l.pod.route.RouteListFiltered(f.netlink, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("routes of P: %w", err)
	}
	for _, r := range list {
		if isDefault(r.Dst) {
			return nil
		}
	}
	return fmt.Errorf("the pod's default route of %s is missing", f.name)
}

// defaultRoute leaves out what routers advertise: it is theirs, and goes with them.
func (a *Attachment) defaultRoute(f *family) *Route {
	for i, r := range a.Routes {
		if r.Destination == f.all && !r.Advertised {
			return &a.Routes[i]
		}
	}
	return nil
}

func (l *Link) repairRoutes() error {
	outer, err := l.outer()
	if err != nil {
		return err
	}
	wanted := l.ourRoutes(outer.Attrs().Index)
	for _, f := range l.attachment.families() {
		wanted = append(wanted, silence(f))
	}
	for _, r := range wanted {
		if err := l.pod.route.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s in table %d: %w", r.Dst, r.Table, err)
		}
	}
	for _, f := range families {
		if l.checkDefaultRoute(f) == nil {
			continue
		}
		if err := l.restoreDefaultRoute(f); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) restoreDefaultRoute(f *family) error {
	link, err := l.pod.link(l.attachment.Interface)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("interface %s of P is missing", l.attachment.Interface)
	}
	d := l.attachment.defaultRoute(f)
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(d.Destination), Gw: d.Gateway.AsSlice(), Src: d.Source.AsSlice(), Priority: d.Metric, MTU: d.MTU}
	if d.OnLink {
		r.Flags = unix.RTNH_F_ONLINK
	}
	if err := l.pod.route.RouteReplace(r); err != nil {
		return fmt.Errorf("the pod's default route: %w", err)
	}
	return nil
}

func (l *Link) outer() (netlink.Link, error) {
	outer, err := l.pod.link(outerName)
	if err == nil && outer == nil {
		err = fmt.Errorf("%s is missing", outerName)
	}
	return outer, err
}

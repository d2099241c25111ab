package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Remove undoes all that Open did to P, and takes the link out of I. P is as it
// was found, and may go on living. It does as much as it can, and is idempotent.
// The Link is of no use afterwards but to be closed.
func (l *Link) Remove(ctx context.Context) error {
	l.ForgetEarly()
	return errors.Join(l.fast.close(), undo(ctx, l.pod), l.forgetKeeper())
}

// Remove does the same by path, without a Link; a P that is gone is no error.
// It is to be called before I goes, which takes hib0 and with it the note of
// P's sysctls (then they are set to the kernel's defaults).
func Remove(ctx context.Context, o Options) error {
	if !isNamespace(o.Pod) {
		return nil
	}
	pod, err := openSide(o.Pod)
	if err != nil {
		return fmt.Errorf("remove link: %w", err)
	}
	defer pod.close()
	if own, err := isOwn(pod.ns); err != nil || own {
		return errors.Join(err, ErrHostNetwork)
	}
	return undo(ctx, pod)
}

// undo takes hib0 last: it holds the record.
func undo(ctx context.Context, pod *side) error {
	errs := []error{
		removeTables(ctx, pod),
		removeLocal(ctx, pod),
		restoreSettings(pod),
		restoreRules(pod),
	}
	outer, err := pod.link(outerName)
	if outer != nil && outer.Type() == "veth" && errors.Join(errs...) == nil { // another's by that name is left alone
		if err = pod.route.LinkDel(outer); errors.Is(err, unix.ENODEV) {
			err = nil
		}
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("remove link of %s: %w", pod.ns.Name(), err)
	}
	return nil
}

func removeTables(ctx context.Context, pod *side) error {
	return pod.withNFT(ctx, func(c *nftables.Conn) error {
		for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyARP} {
			t := &nftables.Table{Name: tableName, Family: family}
			c.AddTable(t) // so that deleting it can't fail
			c.DelTable(t)
		}
		list, err := c.ListTablesOfFamily(nftables.TableFamilyNetdev) // which not all kernels have
		for _, t := range list {
			if t.Name == tableName {
				c.DelTable(t)
			}
		}
		if err := errors.Join(err, c.Flush()); err != nil {
			return fmt.Errorf("delete nft tables: %w", err)
		}
		return nil
	})
}

// restoreSettings puts P's own sysctls back.
func restoreSettings(pod *side) error {
	outer, err := pod.link(outerName)
	if err != nil {
		return err
	}
	if outer != nil && outer.Attrs().Alias != "" {
		r, err := parseRecord(outer.Attrs().Alias)
		if err != nil {
			return err
		}
		return enter(pod.ns, func() error { return applySettings(optional(r)) })
	}
	ours, err := pod.ours()
	if err != nil || !ours {
		return err // nothing was changed yet, or all is undone
	}
	link, err := primary(pod)
	if err != nil {
		return fmt.Errorf("restore sysctls: %w", err)
	}
	six, err := pod.hasRule(sandboxRule(ip6))
	if err != nil {
		return err
	}
	return enter(pod.ns, func() error {
		r, err := defaultRecord(link.Attrs().Name, six)
		if err != nil {
			return err
		}
		return applySettings(optional(r))
	})
}

// optional: P's interface may be gone, and its sysctls with it.
func optional(r record) []setting {
	for i := range r {
		r[i].optional = true
	}
	return r
}

// restoreRules puts the kernel's rule back before it takes ours away: at no time
// are local addresses unknown.
func restoreRules(pod *side) error {
	for _, f := range families {
		if err := restoreFamily(pod, f); err != nil {
			return err
		}
	}
	return nil
}

func restoreFamily(pod *side, f *family) error {
	touched := false
	for _, r := range ourRules(f) {
		has, err := pod.hasRule(r)
		if err != nil {
			return err
		}
		touched = touched || has
	}
	if !touched {
		return nil
	}
	if err := pod.addRule(kernelRule(f)); err != nil {
		return err
	}
	for _, r := range ourRules(f) {
		if err := pod.delRule(r); err != nil {
			return err
		}
	}
	return flushRoutes(pod, f)
}

func flushRoutes(pod *side, f *family) error {
	for _, table := range []int{tableSandbox, tableLocal} {
		list, err := pod.route.RouteListFiltered(f.netlink, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("routes of table %d: %w", table, err)
		}
		for i := range list {
			if err := pod.route.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete route of table %d: %w", table, err)
			}
		}
	}
	return nil
}

package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// The kernel shows its routes to programs under the GPL only, so the three programs are offered under that, too.
const programLicense = "Dual BSD/GPL"

// attach makes the programs and puts them in place, switched off. The caller holds f.mu.
func (f *fastPath) attach(l *Link, at *fastPrograms) (err error) {
	if f.maps == nil {
		if f.maps, err = newFastMaps(l.attachment, l.probers); err != nil {
			return err
		}
	}
	if err := f.write(0); err != nil {
		return err
	}
	s := f.spec(l, at)
	for _, one := range []struct {
		name  string
		side  *side
		index int
		code  asm.Instructions
	}{
		{"hibernate_mute", l.inner, at.inner, mute()},
		{"hibernate_out", l.pod, at.outer, s.outward()},
		{"hibernate_in", l.pod, at.primary, s.inward()},
	} {
		attached, err := attachProgram(one.side, one.name, one.index, one.code)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", one.name, err), at.close())
		}
		at.links = append(at.links, attached)
	}
	f.programs = at
	return nil
}

// spec gathers what the programs have to know. The caller holds f.mu.
func (f *fastPath) spec(l *Link, at *fastPrograms) *fastSpec {
	s := &fastSpec{
		primary: at.primary, outer: at.outer, switches: f.maps.switches, counts: f.maps.counts, ignore: l.ignore, youth: l.youth,
	}
	for _, of := range l.attachment.families() {
		one := &fastFamily{family: of, spec: s, probes: of.fromProbers(l.probers), hops: f.maps.hops[of], youngs: f.maps.youngs[of]}
		for _, a := range l.attachment.of(of) {
			one.addresses = append(one.addresses, netip.PrefixFrom(a, a.BitLen()))
		}
		s.families = append(s.families, one)
	}
	return s
}

// attachProgram leaves the program to its link.
func attachProgram(s *side, name string, index int, code asm.Instructions) (attached link.Link, err error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, Instructions: code, License: programLicense})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	err = enter(s.ns, func() error {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
		return err
	})
	return attached, err
}

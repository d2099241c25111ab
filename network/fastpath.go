package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// fastPath is the way past P's stack: while the gate is open and the sandbox connected, programs at both of P's wires move
// the packets that are plainly the sandbox's; see fastprogram.go. They are held by this process's descriptors: with it
// they go, and P's own way is left, which carries everything at any time.
//
// A program does nothing while its bit of the switch is off. Bits go off before the gate closes or the neighbour goes,
// and on after: so no packet passes a gate that is closed.
type fastPath struct {
	mu sync.Mutex // guards the below

	maps     *fastMaps
	programs *fastPrograms // nil: not attached
	refused  string        // why the kernel can't have them; it is not asked again
	failed   string        // why they couldn't be put in place the last time, which may be over
	obstacle string        // what in P forbids it at present

	generation uint32 // of P's nft rules, when they were last looked through
	open       bool   // the gate
	heeded     bool   // obstacles were looked for since it opened
	connected  bool   // the neighbour
	written    uint32 // to the switch

	told atomic.Pointer[string] // what FastPath says; nil: nothing yet
}

// switches are an array of one, so that the programs reach it without a call; counts, too. The others are each family's own.
type fastMaps struct {
	switches, counts *ebpf.Map
	hops, youngs     map[*family]*ebpf.Map // of those that the pod has, and from which probes come
}

func newFastMaps(a *Attachment, probers []netip.Prefix) (m *fastMaps, err error) {
	m = &fastMaps{hops: map[*family]*ebpf.Map{}, youngs: map[*family]*ebpf.Map{}}
	one := func(s ebpf.MapSpec) (made *ebpf.Map) {
		if err == nil {
			made, err = ebpf.NewMap(&s)
		}
		return made
	}
	m.switches = one(ebpf.MapSpec{Name: "hibernate_gate", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	m.counts = one(ebpf.MapSpec{Name: "hibernate_use", Type: ebpf.Array, KeySize: 4, ValueSize: countsSize, MaxEntries: 1})
	for _, f := range a.families() {
		m.hops[f] = one(ebpf.MapSpec{Name: "hibernate_hops", Type: ebpf.LRUHash, KeySize: f.hopKeySize(), ValueSize: hopSize, MaxEntries: hopsAtMost})
		if len(f.fromProbers(probers)) > 0 {
			m.youngs[f] = one(ebpf.MapSpec{Name: "hibernate_young", Type: ebpf.LRUHash, KeySize: f.youngKeySize(), ValueSize: 8, MaxEntries: youngFast})
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *fastMaps) close() error {
	errs := []error{m.switches.Close(), m.counts.Close()}
	for _, list := range []map[*family]*ebpf.Map{m.hops, m.youngs} {
		for _, one := range list {
			errs = append(errs, one.Close())
		}
	}
	return errors.Join(errs...)
}

// fastPrograms are the three, at the interfaces with these indexes.
type fastPrograms struct {
	primary, outer, inner int
	links                 []link.Link
}

func (p *fastPrograms) at(o *fastPrograms) bool {
	return p.primary == o.primary && p.outer == o.outer && p.inner == o.inner
}

var errNoLink = errors.New("the link is missing")

const misplaced = "the fast path's programs are at interfaces that are gone"

func (p *fastPrograms) close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// wanted is what the switch is to be.
func (f *fastPath) wanted() (bits uint32) {
	if !f.open || !f.heeded || f.programs == nil || f.obstacle != "" {
		return 0
	}
	bits = switchOutward
	if f.connected {
		bits |= switchInward
	}
	return bits
}

// set changes what the switch follows, and the switch.
func (f *fastPath) set(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.tell()
	if f.maps == nil || f.wanted() == f.written {
		return nil
	}
	return f.write(f.wanted())
}

// write sets the switch. The caller holds f.mu.
func (f *fastPath) write(bits uint32) error {
	if err := f.maps.switches.Put(uint32(0), bits); err != nil {
		return fmt.Errorf("switch the fast path: %w", err)
	}
	f.written = bits
	return nil
}

// closing is to come before the gate closes, opened after it is open; so for the neighbour.
func (f *fastPath) closing() error      { return f.set(func() { f.open, f.heeded = false, false }) }
func (f *fastPath) opened() error       { return f.set(func() { f.open = true }) }
func (f *fastPath) disconnected() error { return f.set(func() { f.connected = false }) }
func (f *fastPath) nowConnected() error { return f.set(func() { f.connected = true }) }

// counted is what passed so far.
func (f *fastPath) counted() (Counters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.maps == nil {
		return Counters{}, nil
	}
	var v [countsSize / 8]uint64
	if err := f.maps.counts.Lookup(uint32(0), &v); err != nil {
		return Counters{}, fmt.Errorf("read the fast path's counters: %w", err)
	}
	in, out := v[countsInward/8:], v[countsOutward/8:]
	return Counters{in[0], in[1]}.plus(Counters{out[0], out[1]}), nil
}

// close takes the programs away; packets go P's way.
func (f *fastPath) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.programs != nil {
		errs = append(errs, f.programs.close())
	}
	if f.maps != nil {
		errs = append(errs, f.maps.close())
	}
	f.programs, f.maps = nil, nil
	f.tell()
	return errors.Join(errs...)
}

// tell keeps the reason for who asks. The caller holds f.mu.
func (f *fastPath) tell() {
	why := ""
	switch {
	case f.refused != "":
		why = f.refused
	case f.failed != "":
		why = f.failed
	case f.obstacle != "":
		why = f.obstacle
	case f.programs == nil:
		why = notInPlace
	case f.open && !f.heeded:
		why = notYet
	}
	f.told.Store(&why)
}

const (
	notInPlace = "not in place"
	notYet     = "the gate has only just opened: it is looked for what forbids it"
)

// FastPath is "" while packets of an open gate pass P's stack by, and else the reason why they go through it. It waits for
// nothing.
func (l *Link) FastPath() string {
	if why := l.fast.told.Load(); why != nil {
		return *why
	}
	return notInPlace
}

// checkFast tells what is wrong with the fast path. That there is none for a reason is not wrong.
func (l *Link) checkFast(ctx context.Context) error {
	if err := l.heedObstacles(ctx); err != nil {
		return err
	}
	at, err := l.fastPlaces()
	if err != nil {
		return err
	}
	f := &l.fast
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused != "" || at.primary == 0 {
		return nil
	}
	if f.failed != "" {
		if err := f.place(l, at); err != nil {
			return err
		}
	}
	if f.refused != "" || f.failed != "" {
		return nil
	}
	if f.programs == nil {
		return errors.New("the fast path's programs are not in place")
	}
	if !f.programs.at(at) {
		return errors.New(misplaced)
	}
	for _, one := range f.programs.links {
		if info, err := one.Info(); err != nil {
			return fmt.Errorf("the fast path: %w", err)
		} else if info.TCX() == nil || info.TCX().Ifindex == 0 {
			return errors.New("a program of the fast path was taken off its interface")
		}
	}
	var bits uint32
	if err := f.maps.switches.Lookup(uint32(0), &bits); err != nil {
		return fmt.Errorf("the fast path's switch: %w", err)
	}
	if bits != f.wanted() {
		return fmt.Errorf("the fast path's switch is %d, not %d", bits, f.wanted())
	}
	return nil
}

// repairFast puts the programs in place. A kernel that refuses them is no error: P's way is as good, but slower.
func (l *Link) repairFast() error {
	at, err := l.fastPlaces()
	if err != nil {
		return err
	}
	f := &l.fast
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused != "" || at.primary == 0 {
		return nil
	}
	if f.programs != nil {
		if err := f.programs.close(); err != nil {
			return err
		}
		f.programs = nil
	}
	return f.place(l, at)
}

// place puts the programs in place, or notes why it can't. The caller holds f.mu.
func (f *fastPath) place(l *Link, at *fastPrograms) error {
	defer f.tell()
	f.failed = ""
	err := f.attach(l, at)
	switch {
	case err == nil:
		return f.write(f.wanted())
	case never(err):
		f.refused = fmt.Sprintf("the kernel refused it: %v", err)
	default:
		f.failed = fmt.Sprintf("the kernel refused it for now: %v", err)
	}
	return nil
}

// never says whether an error is the kernel's last word. Want of memory, or an interface that went away, is over some time.
func never(err error) bool {
	for _, passing := range []error{unix.ENOMEM, unix.EAGAIN, unix.EINTR} {
		if errors.Is(err, passing) {
			return false
		}
	}
	for _, last := range []error{unix.EPERM, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, ebpf.ErrNotSupported} {
		if errors.Is(err, last) {
			return true
		}
	}
	var v *ebpf.VerifierError
	return errors.As(err, &v)
}

// fastPlaces finds the interfaces that programs belong to. The pod's is 0 when it is gone.
func (l *Link) fastPlaces() (*fastPrograms, error) {
	outer, inner, err := l.ends()
	if err != nil {
		return nil, err
	}
	if outer == nil || inner == nil {
		return nil, errNoLink
	}
	at := &fastPrograms{outer: outer.Attrs().Index, inner: inner.Attrs().Index}
	primary, err := l.pod.link(l.attachment.Interface)
	if primary != nil {
		at.primary = primary.Attrs().Index
	}
	return at, err
}

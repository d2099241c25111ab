package node

import (
	"context"
	"slices"
	"sync"
	"time"
)

// View is the set of workloads. Safe for concurrent use.
type View struct {
	opts   Options
	ctx    context.Context // of all roles; ends with Close
	cancel context.CancelFunc
	scan   sync.WaitGroup
	roles  sync.WaitGroup

	mu        sync.Mutex
	workloads map[Key]*Workload // guarded by mu
	closed    bool              // guarded by mu
}

// byRecord is the voucher of all records.
type byRecord struct{}

// Open scans the records once, and goes on scanning until Close. A failed scan is logged and made again.
func Open(opts Options) *View {
	v := &View{opts: opts.withDefaults(), workloads: make(map[Key]*Workload)}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.rescan()
	v.scan.Go(v.rescanForever)
	return v
}

// Close ends the roles of all workloads and waits for them. Registrations must have ended.
func (v *View) Close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.scan.Wait()
	for _, w := range v.List() {
		v.withdrawAll(w)
	}
	v.roles.Wait()
}

// Get returns the workload of that key, nil when there is none.
func (v *View) Get(key Key) *Workload {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.workloads[key]
}

// List returns all workloads in the order of their keys.
func (v *View) List() []*Workload {
	v.mu.Lock()
	all := make([]*Workload, 0, len(v.workloads))
	for _, w := range v.workloads {
		all = append(all, w)
	}
	v.mu.Unlock()
	slices.SortFunc(all, func(a, b *Workload) int { return a.Key.Compare(b.Key) })
	return all
}

// Register vouches for a shim that has registered itself, until release. It returns nil when the view is closed. A shim
// at another address than the known one replaces it: it is a new process.
func (v *View) Register(key Key, address string) (w *Workload, release func()) {
	voucher := new(int) // unlike any other
	w = v.vouch(Found{Key: key, Address: address}, voucher, true)
	if w == nil {
		return nil, func() {}
	}
	return w, func() { v.withdraw(w, voucher) }
}

// rescanForever scans until the view is closed.
func (v *View) rescanForever() {
	ticker := time.NewTicker(v.opts.ScanEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			v.rescan()
		case <-v.ctx.Done():
			return
		}
	}
}

// rescan brings the vouchers of records up to date.
func (v *View) rescan() {
	found, err := v.opts.Scan()
	if err != nil {
		v.opts.Log.Warn("scan of the shims' records failed", "error", err)
		if found == nil {
			return // an unreadable directory says nothing about who is gone
		}
	}
	present := make(map[Key]bool, len(found))
	for _, shim := range found {
		present[shim.Key] = true
		v.vouch(shim, byRecord{}, false)
	}
	for _, w := range v.List() {
		if !present[w.Key] {
			v.withdraw(w, byRecord{})
		}
	}
}

// vouch adds a voucher to the workload of a shim, which it makes when there is none. One at another address is replaced
// when force is set or only a record speaks for it. It returns nil when the view is closed.
func (v *View) vouch(shim Found, voucher any, force bool) *Workload {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	w := v.workloads[shim.Key]
	if w != nil && w.Address != shim.Address && (force || onlyRecord(w)) {
		v.dropLocked(w)
		w = nil
	}
	if w == nil {
		w = v.startLocked(shim)
	}
	w.vouchers[voucher] = struct{}{}
	return w
}

// onlyRecord reports whether nothing but a record vouches for w. View.mu is held.
func onlyRecord(w *Workload) bool {
	_, record := w.vouchers[byRecord{}]
	return record && len(w.vouchers) == 1
}

// withdraw takes back a voucher; without any the workload leaves the view.
func (v *View) withdraw(w *Workload, voucher any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(w.vouchers, voucher)
	if len(w.vouchers) == 0 {
		v.dropLocked(w)
	}
}

func (v *View) withdrawAll(w *Workload) {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(w.vouchers)
	v.dropLocked(w)
}

// startLocked puts a new workload into the view and starts its roles. v.mu is held.
func (v *View) startLocked(shim Found) *Workload {
	ctx, cancel := context.WithCancelCause(v.ctx)
	w := &Workload{
		Key: shim.Key, Address: shim.Address, Shim: v.opts.Dial(shim.Address),
		vouchers: make(map[any]struct{}), cancel: cancel, changed: make(chan struct{}),
	}
	v.workloads[w.Key] = w
	v.opts.Log.Info("workload seen", "namespace", w.Namespace, "id", w.ID, "address", w.Address)
	v.roles.Go(func() { v.live(ctx, w) })
	return w
}

// live runs the roles of a workload until it leaves the view, then closes its client.
func (v *View) live(ctx context.Context, w *Workload) {
	var roles sync.WaitGroup
	roles.Go(func() { w.watch(ctx, v.opts.OnEvent) })
	for _, role := range v.opts.Roles {
		roles.Go(func() { role(ctx, w) })
	}
	roles.Wait()
	_ = w.Shim.Close()
	v.opts.OnGone(w)
	v.opts.Log.Info("workload gone", "namespace", w.Namespace, "id", w.ID)
}

// dropLocked takes a workload out of the view and ends its roles. v.mu is held.
func (v *View) dropLocked(w *Workload) {
	if v.workloads[w.Key] == w {
		delete(v.workloads, w.Key)
	}
	w.cancel(errLeft)
}

package upload

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// used are the bytes that a lineage's generations take, looked at from outside.
func (w *world) used(name string) int64 {
	w.t.Helper()
	n, err := w.other(name).Usage(w.t.Context())
	w.must(err)
	return n
}

// fresh are 100 pages that no compression makes smaller: some 400 KiB.
const freshBytes = 100 * 4096

// TestQuota: for a new snapshot the oldest that are not pinned go, and what the generations take stays below the quota.
func TestQuota(t *testing.T) {
	const quota = freshBytes * 7 / 2
	w, d, name := slept(t, 3, func(o *Options) { o.Quota = quota })
	if got := w.sequences(name); !slices.Equal(got, []uint64{3, 2, 1}) {
		t.Fatalf("generations %d", got)
	}
	w.sleep("web", 4, memory(100, 4))
	w.uploaded(d, "web", 4)
	if got := w.sequences(name); !slices.Equal(got, []uint64{4, 3, 2}) {
		t.Errorf("the oldest has not made room: generations %d", got)
	}
	_, _, err := d.Pin(t.Context(), name, 2, true)
	w.must(err)
	w.sleep("web", 5, memory(100, 5))
	w.uploaded(d, "web", 5)
	if got := w.sequences(name); !slices.Equal(got, []uint64{5, 4, 2}) {
		t.Errorf("a pinned one went: generations %d", got)
	}
	if n := w.used(name); n > quota || n < quota/2 {
		t.Errorf("%d bytes are taken of %d", n, quota)
	}
	if !strings.Contains(w.log.String(), "has made room") {
		t.Error("it is not told")
	}
}

// TestOverQuota: what doesn't fit is refused and told, nothing is given up for it, and it is uploaded once there is room.
func TestOverQuota(t *testing.T) {
	w, d, name := slept(t, 2, func(o *Options) { o.Quota = freshBytes * 9 / 4 })
	for _, n := range []uint64{1, 2} {
		_, _, err := d.Pin(t.Context(), name, n, true)
		w.must(err)
	}
	w.sleep("web", 3, memory(100, 3))
	w.eventually("it is refused", func() bool {
		c, _ := d.Copies(key("web"))
		return c.Final && errors.Is(c.Err, ErrQuota) && c.Durable == 2 && !c.Since.IsZero()
	})
	if c, _ := d.Copies(key("web")); !strings.Contains(c.Err.Error(), "raise store-quota") {
		t.Errorf("what to do is not said: %v", c.Err)
	}
	if got := w.sequences(name); !slices.Equal(got, []uint64{2, 1}) {
		t.Errorf("generations %d", got)
	}
	_, _, err := d.Pin(t.Context(), name, 1, false)
	w.must(err)
	w.uploaded(d, "web", 3)
	if got := w.sequences(name); !slices.Equal(got, []uint64{3, 2}) {
		t.Errorf("generations %d", got)
	}
	w.sleep("web", 4, memory(300, 4)) // more than all
	w.eventually("it is refused", func() bool { c, _ := d.Copies(key("web")); return errors.Is(c.Err, ErrQuota) })
	if got := w.sequences(name); len(got) == 0 || got[0] != 3 {
		t.Errorf("the newest was given up: %d", got)
	}
	w.sleep("web", 5, memory(100, 3)) // as 3
	w.uploaded(d, "web", 5)
}

// TestOverQuotaLeavesNothing: what an upload had sent, when it turned out that it is too large, is collected, though nothing is uploaded
// any more.
func TestOverQuotaLeavesNothing(t *testing.T) {
	const pack = 32 << 20
	w, d, name := slept(t, 1, func(o *Options) { o.Quota, o.Grace = pack+4<<20, time.Nanosecond })
	before := w.packs(name)
	w.eventually("there is nothing to collect", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		l := d.lineages[name]
		if !l.busy {
			l.collectAt = time.Time{}
		}
		return !l.busy
	})
	w.sleep("web", 2, memory(pack/4096+2048, 9))
	w.eventually("it is refused", func() bool { c, _ := d.Copies(key("web")); return errors.Is(c.Err, ErrQuota) })
	if got := w.packs(name); len(got) <= len(before) {
		t.Fatalf("nothing was sent: %q", got)
	}
	if at := w.collects(d, name); at.IsZero() {
		t.Error("nobody is going to collect it")
	}
	w.bucket.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	d.mu.Lock()
	d.lineages[name].collectAt = time.Now()
	d.mu.Unlock()
	d.wake()
	w.eventually("it is collected", func() bool { return slices.Equal(w.packs(name), before) })
	if got := w.sequences(name); !slices.Equal(got, []uint64{1}) {
		t.Errorf("generations %d", got)
	}
}

// packs are the names of a lineage's.
func (w *world) packs(name string) (all []string) {
	for _, n := range w.bucket.Names() {
		if strings.HasPrefix(n, "data/"+name+"/p/") {
			all = append(all, n)
		}
	}
	return all
}

// collects is when garbage of a lineage is looked for next.
func (w *world) collects(d *daemon, name string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lineages[name].collectAt
}

// TestExpires: what has left is destroyed when delete-after is over, not before; what says nothing stays; pinned ones stay.
func TestExpires(t *testing.T) {
	w := newWorld(t)
	d := w.daemon()
	names := make(map[string]string)
	for i, id := range []string{"soon", "late", "never", "pinned"} {
		for n := uint64(1); n <= 2; n++ {
			w.sleep(id, n, memory(20, byte(10*i)+byte(n)))
			names[id] = w.uploaded(d, id, n).Name
		}
	}
	for id, after := range map[string]time.Duration{"soon": 20 * time.Millisecond, "late": time.Hour, "never": 0, "pinned": 20 * time.Millisecond} {
		d.Slept(key(id), Wishes{Keep: 3, DeleteAfter: after})
		w.eventually("it is noted", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			r := d.lineages[names[id]].record
			return r.Keep == 3 && r.DeleteAfter == after
		})
	}
	_, _, err := d.Pin(t.Context(), names["pinned"], 1, true)
	w.must(err)
	time.Sleep(60 * time.Millisecond)
	for id, name := range names {
		if got := w.sequences(name); !slices.Equal(got, []uint64{2, 1}) {
			t.Errorf("%s: %d while its workload is there", id, got)
		}
	}
	for id := range names {
		w.must(os.RemoveAll(w.dir(id)))
	}
	w.eventually("it is destroyed", func() bool {
		_, err := w.other(names["soon"]).Head(t.Context())
		return errors.Is(err, durable.ErrDestroyed)
	})
	w.eventually("only the pinned one is left", func() bool { return slices.Equal(w.sequences(names["pinned"]), []uint64{1}) })
	for _, id := range []string{"late", "never"} {
		if got := w.sequences(names[id]); !slices.Equal(got, []uint64{2, 1}) {
			t.Errorf("%s: %d", id, got)
		}
	}
	all, err := d.List(t.Context(), names["late"])
	w.must(err)
	if at := time.Until(all[0].Delete); at < 50*time.Minute || at > time.Hour {
		t.Errorf("it is told to be destroyed in %v", at)
	}
	w.eventually("it is told", func() bool {
		return strings.Contains(w.log.String(), "will be destroyed") && strings.Contains(w.log.String(), "are destroyed: delete-after")
	})
	d.stop()
	d = w.daemon(func(o *Options) { o.Grace = time.Nanosecond }) // another daemon collects what is left of it
	w.eventually("it is open", func() bool { return d.isOpen() })
	w.bucket.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	w.must(d.Collect(t.Context(), "", false, func(c Collected) error { return c.Err }))
	w.eventually("nothing but its tombstone is left, and what tells of the collection", func() bool {
		for _, n := range w.bucket.Names() {
			if strings.HasPrefix(n, "data/"+names["soon"]+"/") && !strings.Contains(n, "/gc/") {
				return false
			}
		}
		return true
	})
}

// TestExpiredSleeper: when a sleeper was ended for it, its snapshots go at once.
func TestExpiredSleeper(t *testing.T) {
	w, d, name := slept(t, 1)
	w.sleep("other", 1, memory(10, 9))
	other := w.uploaded(d, "other", 1).Name
	d.Expired(key("web"), time.Now().Add(-time.Minute)) // the news may be quicker
	time.Sleep(20 * time.Millisecond)
	w.must(os.RemoveAll(w.dir("web")))
	d.Left(key("web"))
	w.eventually("it is destroyed", func() bool {
		_, err := w.other(name).Head(t.Context())
		return errors.Is(err, durable.ErrDestroyed)
	})
	if got := w.sequences(other); len(got) != 1 {
		t.Errorf("another workload's: %d", got)
	}
}

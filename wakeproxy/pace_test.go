package wakeproxy

import (
	"testing"
	"time"
)

// TestOnlyStreamsThatCarryMuchWait: neither requests, nor the first bytes after a pause.
func TestOnlyStreamsThatCarryMuchWait(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int
		every time.Duration
		busy  bool
	}{
		"a download":             {bytes: 64 << 10, every: 200 * time.Microsecond, busy: true},
		"in tiny pieces":         {bytes: 6 << 10, every: 20 * time.Microsecond, busy: true},
		"small requests":         {bytes: 200, every: 50 * time.Microsecond},
		"a large answer, seldom": {bytes: 256 << 10, every: 50 * time.Millisecond},
		"a slow line":            {bytes: 16 << 10, every: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			now := time.Unix(0, 0)
			for range 1000 {
				now = now.Add(c.every)
				p.moved(c.bytes, now)
			}
			if p.busy != c.busy {
				t.Errorf("busy is %t, want %t", p.busy, c.busy)
			}
			now = now.Add(time.Second)
			if p.moved(1, now); p.busy {
				t.Error("busy after a pause")
			}
		})
	}
}

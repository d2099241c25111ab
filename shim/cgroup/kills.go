package cgroup

import (
	"fmt"
)

// Kills counts the processes of the group that the kernel has killed for want
// of memory. It does not fall while the group lives.
func (g *Group) Kills() (uint64, error) {
	n, err := g.kills()
	if err != nil {
		return 0, fmt.Errorf("out-of-memory kills of control group %s: %w", g.path, err)
	}
	return n, nil
}

// WatchKills calls changed with the new count whenever Kills has grown, one
// call after the other, until stop. stop returns when no call is under way any
// more, and may be called again, though not by changed. The group may be
// deleted before. The watch costs one descriptor and no thread.
func (g *Group) WatchKills(changed func(kills uint64)) (stop func(), err error) {
	last, err := g.Kills()
	if err != nil {
		return nil, err
	}
	counter, err := g.watch()
	if err != nil {
		return nil, fmt.Errorf("watch control group %s for want of memory: %w", g.path, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			now, err := counter.next(last)
			if err != nil {
				return
			}
			last = now
			changed(now)
		}
	}()
	return func() { _ = counter.Close(); <-done }, nil
}

// counter is a number in a control group that is waited for.
type counter interface {
	// next returns the number once it is more than last, and an error once the
	// counter is closed.
	next(last uint64) (uint64, error)
	Close() error
}

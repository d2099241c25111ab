package network

import (
	"context"
	"errors"
	"time"
)

// Rung is one step of the ladder, as found and as left.
type Rung struct {
	Name     string
	OK       bool   // as left
	Repaired bool   // it was not as it should be, and now is
	Detail   string // what was wrong
	Took     time.Duration
}

// stage is a part of the link that can be looked at and mended.
type stage struct {
	name   string
	check  func() error // nil when all is well
	repair func() error // nil when there is nothing to be done here
}

// stages are those that need no sandbox.
func (l *Link) stages(ctx context.Context) []stage {
	return []stage{
		{"link", l.checkLink, l.repairLink},
		{"inner", func() error { return l.checkInner(ctx) }, func() error { return l.repairInner(ctx) }},
		{"route", l.checkRoutes, l.repairRoutes},
		{"policy", l.checkPolicy, l.repairPolicy},
		{"fast path", func() error { return l.checkFast(ctx) }, l.repairFast},
	}
}

// Check climbs the ladder: link, inner, route, neighbour, gate, policy, fast
// path, netstack, accepts. Each rung that is not well is repaired, and looked at
// again. It is meant for a sandbox that runs, after Connect; the gate may be in
// any position. ports are those that were listening: one that accepts is
// enough, and the workload doesn't see the half-open connection that asks.
func (l *Link) Check(ctx context.Context, ports []uint16) []Rung {
	s := l.stages(ctx)
	ladder := []stage{
		s[0], s[1], s[2],
		{"neighbour", l.checkNeighbour, func() error { return l.Connect(ctx) }},
		{"gate", func() error { return l.checkTables(ctx) }, func() error { return l.repairTables(ctx) }},
		s[3], s[4],
		{"netstack", func() error { return l.checkNetstack(ctx) }, nil},
		{"accepts", func() error { return l.checkAccepts(ctx, ports) }, nil},
	}
	rungs := make([]Rung, 0, len(ladder))
	for _, s := range ladder {
		rungs = append(rungs, climb(s))
	}
	return rungs
}

func climb(s stage) Rung {
	start := time.Now()
	r := Rung{Name: s.name}
	err := s.check()
	if err != nil {
		r.Detail = err.Error()
	}
	if err != nil && s.repair != nil {
		if err = s.repair(); err == nil {
			err = s.check()
		}
		if r.Repaired = err == nil; err != nil {
			r.Detail += "; repair: " + err.Error()
		}
	}
	r.OK = err == nil
	r.Took = time.Since(start)
	return r
}

func (l *Link) checkTables(ctx context.Context) error {
	return errors.Join(l.checkGate(ctx), l.checkDeaf(ctx))
}

func (l *Link) repairTables(ctx context.Context) error {
	return errors.Join(l.SetGate(ctx, l.wanted()), l.deafen(ctx))
}

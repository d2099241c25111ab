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

// stagesOfLink is how many of the stages, the first ones, are the pair itself.
const stagesOfLink = 2

// stages are those that need no sandbox.
func (l *Link) stages(ctx context.Context) []stage {
	return append([]stage{
		{"link", l.checkLink, l.repairLink},
		{"inner", func() error { return l.checkInner(ctx) }, func() error { return l.repairInner(ctx) }},
		{"route", l.checkRoutes, l.repairRoutes},
		{"policy", l.checkPolicy, l.repairPolicy},
		{"fast path", func() error { return l.checkFast(ctx) }, l.repairFast},
	}, l.translateStage(ctx)...)
}

// Check climbs the ladder: link, inner, route, neighbour, gate, policy, fast
// path, translation (where the sandbox has another address than the pod), netstack, accepts. Each rung that is not well is repaired, and looked at
// again. It is meant for a sandbox that runs, after Connect; the gate may be in
// any position. ports are those that were listening: one that accepts is
// enough, and the workload doesn't see the half-open connection that asks.
func (l *Link) Check(ctx context.Context, ports []uint16) []Rung {
	return climbAll(append(l.rungs(ctx, true),
		stage{"netstack", func() error { return l.checkNetstack(ctx) }, nil},
		stage{"accepts", func() error { return l.checkAccepts(ctx, ports) }, nil},
	))
}

// Mend is Check without the sandbox: it asks it nothing, and does while it is away,
// when connected says that it is not to be hib0's neighbour.
func (l *Link) Mend(ctx context.Context, connected bool) []Rung {
	return climbAll(l.rungs(ctx, connected))
}

// rungs are those of the ladder that lie before the sandbox.
func (l *Link) rungs(ctx context.Context, connected bool) []stage {
	s := l.stages(ctx)
	rungs := s[:3:3]
	if connected {
		rungs = append(rungs, stage{"neighbour", l.checkNeighbour, func() error { return l.Connect(ctx) }})
	}
	rungs = append(rungs,
		stage{"gate", func() error { return l.checkTables(ctx) }, func() error { return l.repairTables(ctx) }})
	return append(rungs, s[3:]...)
}

func climbAll(stages []stage) []Rung {
	rungs := make([]Rung, 0, len(stages))
	for _, s := range stages {
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
	return errors.Join(l.checkGate(ctx), l.checkDeaf(ctx), l.checkLocal(ctx))
}

func (l *Link) repairTables(ctx context.Context) error {
	return errors.Join(l.setGateAgain(ctx), l.deafen(ctx), l.writeLocal(ctx))
}

package main

import (
	"fmt"
	"slices"
)

// order is that of the steps in time; those of a wake overlap, so they don't sum up.
var order = []string{
	"wake/choose", "wake/verify", "wake/boot", "wake/inner", "wake/claim", "wake/restore", "wake/open", "wake/ladder", "wake/total",
	"hibernate/guard", "hibernate/quiesce", "hibernate/pause", "hibernate/checkpoint", "hibernate/verify", "hibernate/commit",
	"hibernate/free", "hibernate/total",
}

// tellStages adds the medians of the steps: where the time goes.
func (r *report) tellStages(p *pair) {
	known := slices.Clone(order)
	for step := range p.stages {
		if !slices.Contains(known, step) {
			known = append(known, step)
		}
	}
	for _, step := range known {
		if of := p.stages[step]; of != nil {
			r.addStage(fmt.Sprintf("stage_ms_p50/%d/%s", p.mib, step), of.median(), len(*of))
		}
	}
}

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// order is that of the steps in time; those of a wake overlap, so they don't sum up.
var order = strings.Fields(`before choose verify boot create inner claim restore open ladder
	guard quiesce pause checkpoint fsync commit free delete after total`)

// tellStages adds the medians of the steps: where the time goes.
func (r *report) tellStages(p *pair) {
	names := slices.SortedFunc(maps.Keys(p.stages), func(a, b string) int {
		kindA, stepA, _ := strings.Cut(a, "/")
		kindB, stepB, _ := strings.Cut(b, "/")
		if kindA != kindB {
			return strings.Compare(kindA, kindB)
		}
		return slices.Index(order, stepA) - slices.Index(order, stepB)
	})
	for _, name := range names {
		of := p.stages[name]
		r.addStage(fmt.Sprintf("stage_ms_p50/%d/%s", p.mib, name), of.median(), len(*of))
	}
}

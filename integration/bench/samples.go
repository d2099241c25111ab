package main

import (
	"slices"
	"time"
)

// samples are values of one kind, most of them milliseconds.
type samples []float64

func (s *samples) add(d time.Duration) { *s = append(*s, milliseconds(d)) }

func (s *samples) addValue(v float64) { *s = append(*s, v) }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile is the smallest value that a share q of the samples does not exceed; 0 of none.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s samples) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

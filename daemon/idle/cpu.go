package idle

import "time"

// cpuWindow judges CPU use over a sliding window, and dates the use it finds.
type cpuWindow struct {
	points []cpuPoint
}

type cpuPoint struct {
	at   time.Time
	used time.Duration
}

// reset forgets all that was used before: the restore's own work is not the workload's.
func (w *cpuWindow) reset(now time.Time, used time.Duration) {
	w.points = append(w.points[:0], cpuPoint{now, used})
}

// add notes the CPU time used so far. When the use within the window was above the fraction, it returns the end of the
// newest interval that was above it by itself: a burst counts when it happened, not as long as it is remembered.
func (w *cpuWindow) add(now time.Time, used, window time.Duration, fraction float64) (busy time.Time, ok bool) {
	if newest := w.points[len(w.points)-1]; used < newest.used || now.Before(newest.at) {
		w.reset(now, used) // the counter is a new one
		return time.Time{}, false
	}
	w.points = append(w.points, cpuPoint{now, used})
	w.trim(now.Add(-window))
	fraction = max(fraction, 0)
	budget := time.Duration(float64(window) * fraction)
	if used-w.points[0].used <= budget {
		return time.Time{}, false
	}
	return w.newestBusy(fraction)
}

// trim keeps one point at or before the window's beginning.
func (w *cpuWindow) trim(begin time.Time) {
	drop := 0
	for drop+1 < len(w.points) && !w.points[drop+1].at.After(begin) {
		drop++
	}
	w.points = append(w.points[:0], w.points[drop:]...)
}

func (w *cpuWindow) newestBusy(fraction float64) (time.Time, bool) {
	for i := len(w.points) - 1; i > 0; i-- {
		from, to := w.points[i-1], w.points[i]
		if float64(to.used-from.used) > fraction*float64(to.at.Sub(from.at)) {
			return to.at, true
		}
	}
	return time.Time{}, false
}

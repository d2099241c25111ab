package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Broken tells why a workload's activity can't be measured, so that it is kept awake; "" when it can.
func (k *Keeper) Broken(w *node.Workload) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.broken[w]
}

// unmeasured notes a question that was not answered. Nothing hibernates for want of an answer; when that lasts, it is an
// alarm.
func (f *follower) unmeasured(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	now := time.Now()
	if f.failing.IsZero() {
		f.failing = now
	}
	if now.Sub(f.failing) >= f.opts.AlarmAfter {
		f.raise(fmt.Sprintf("the shim doesn't tell its activity: %v", err))
	}
}

// meterFault is what the idle policy found wrong with the measurements.
func meterFault(d idle.Decision) string {
	for _, r := range d.Reasons {
		if r.Code == idle.Meter {
			return r.Detail
		}
	}
	return ""
}

// raise begins or ends an alarm, with a line in the log for each.
func (f *follower) raise(fault string) {
	if (fault == "") == (f.alarm == "") {
		return
	}
	f.alarm = fault
	f.mu.Lock()
	if fault == "" {
		delete(f.broken, f.w)
	} else {
		f.broken[f.w] = fault
	}
	f.mu.Unlock()
	if fault == "" {
		f.log.Info("activity is measured again")
		return
	}
	f.log.Error("activity can't be measured: the workload is kept awake", "fault", fault)
}

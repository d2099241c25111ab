package expire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Expirer looks for sleepers that nobody wants. List and Log are required.
type Expirer struct {
	List func() []*node.Workload
	// Ended is told of each that was ended, and since when it had slept. Default: nobody.
	Ended func(key node.Key, asleep time.Time)
	// Record is the file that each is written to, a line of JSON; "" for none.
	Record string
	// Every is the time between two looks. Default 5 s.
	Every time.Duration
	Log   *slog.Logger

	warned map[node.Key]warning
}

// warning is what was told of a sleeper.
type warning struct {
	asleep int64 // since when it slept then
	at     time.Time
}

// After is what a workload's key delete-after says; 0: never.
func After(s *shimv1.StatusResponse) time.Duration {
	for _, k := range s.GetSettings() {
		if k.GetKey() == "delete-after" {
			d, _ := time.ParseDuration(k.GetValue())
			return max(d, 0)
		}
	}
	return 0
}

// At is when a workload is ended unless it is woken; zero: it is not.
func At(s *shimv1.StatusResponse) time.Time {
	after := After(s)
	if after == 0 || s.GetState() != "asleep" || s.GetStateSinceUnixMs() == 0 {
		return time.Time{}
	}
	for _, c := range s.GetContainers() {
		if c.GetState() == "paused" {
			return time.Time{}
		}
	}
	return time.UnixMilli(s.GetStateSinceUnixMs()).Add(after)
}

// Near is how long before its end a sleeper is told of: a quarter of its time, a week at most.
func Near(after time.Duration) time.Duration { return min(after/4, 7*24*time.Hour) }

// atLeast is how long a sleeper has been told of before it is ended, also where its time was over when the daemon came.
func atLeast(after time.Duration) time.Duration { return min(Near(after), time.Minute) }

// Run looks until ctx ends.
func (e *Expirer) Run(ctx context.Context) {
	every := e.Every
	if every <= 0 {
		every = 5 * time.Second
	}
	e.warned = make(map[node.Key]warning)
	for ctx.Err() == nil {
		sleepers := make(map[node.Key]bool)
		for _, w := range e.List() {
			if at := At(w.Status()); !at.IsZero() {
				sleepers[w.Key] = true
				e.judge(ctx, w, at, time.Now())
			}
		}
		maps.DeleteFunc(e.warned, func(k node.Key, _ warning) bool { return !sleepers[k] }) // woken, or gone
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// endTimeout bounds how long a shim may take.
const endTimeout = 30 * time.Second

func (e *Expirer) judge(ctx context.Context, w *node.Workload, at, now time.Time) {
	s := w.Status()
	log := e.Log.With("namespace", w.Namespace, "id", w.ID, "delete_after", After(s).String())
	if at.Sub(now) > Near(After(s)) {
		return
	}
	told := e.warned[w.Key]
	if told.asleep != s.GetStateSinceUnixMs() {
		e.warned[w.Key] = warning{s.GetStateSinceUnixMs(), now}
		log.Warn("nobody has woken a sleeper for long: it will be ended, and its snapshots deleted, unless somebody does; hibernatectl wake is enough",
			"in", max(at.Sub(now), atLeast(After(s))).Round(time.Second).String())
		return
	}
	if now.Before(at) || now.Sub(told.at) < atLeast(After(s)) || w.Err() != nil {
		return
	}
	if err := end(ctx, w, s); err != nil {
		log.Info("a sleeper that nobody wants was not ended", "reason", err)
		return
	}
	delete(e.warned, w.Key)
	log.Warn("a sleeper that nobody has woken was ended, with status 137, and its snapshots are deleted",
		"slept", now.Sub(time.UnixMilli(s.GetStateSinceUnixMs())).Round(time.Second).String(), "sequence", s.GetSequence())
	if err := e.record(w.Key, s, now); err != nil {
		log.Warn("that is not written down", "error", err)
	}
	if e.Ended != nil {
		e.Ended(w.Key, time.UnixMilli(s.GetStateSinceUnixMs()))
	}
}

// end has the shim end it. One that has ended may be gone before it could say so.
func end(ctx context.Context, w *node.Workload, s *shimv1.StatusResponse) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	_, err := w.Shim.EndSleeper(ctx, &shimv1.EndSleeperRequest{AsleepSinceUnixMs: s.GetStateSinceUnixMs()})
	if err != nil && w.State() == "ended" && w.Status().GetStateSinceUnixMs() >= s.GetStateSinceUnixMs() {
		return nil
	}
	return err
}

// line is what is written of one.
type line struct {
	Time        time.Time `json:"time"`
	Namespace   string    `json:"namespace"`
	ID          string    `json:"id"`
	AsleepSince time.Time `json:"asleep_since"`
	DeleteAfter string    `json:"delete_after"`
	Sequence    uint64    `json:"sequence"`
}

// recordSize is from which a file is begun anew; the one before is kept.
const recordSize = 1 << 20

func (e *Expirer) record(key node.Key, s *shimv1.StatusResponse, now time.Time) error {
	if e.Record == "" {
		return nil
	}
	text, err := json.Marshal(line{
		Time: now.UTC(), Namespace: key.Namespace, ID: key.ID, AsleepSince: time.UnixMilli(s.GetStateSinceUnixMs()).UTC(),
		DeleteAfter: After(s).String(), Sequence: s.GetSequence(),
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(e.Record), 0o700); err != nil {
		return err
	}
	if st, err := os.Stat(e.Record); err == nil && st.Size() >= recordSize {
		if err := os.Rename(e.Record, e.Record+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := os.OpenFile(e.Record, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\n", text)
	return errors.Join(err, f.Close())
}

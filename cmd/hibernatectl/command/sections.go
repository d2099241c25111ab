package command

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/expire"
)

// printFacts writes the head of inspect.
func printFacts(out io.Writer, w *daemonv1.Workload, now time.Time) error {
	s := w.GetStatus()
	t := newTable(out)
	for _, fact := range [][2]string{
		{"Workload", s.GetNamespace() + "/" + s.GetId()},
		{"Identity", identity(s)},
		{"Image", s.GetImage()},
		{"State", stateFor(w, now)},
		{"Waits for", w.GetWakeWaits()},
		{"Idle for", idleFor(w)},
		{"Sleeps in", sleepsIn(w)},
		{"Memory", humanBytes(s.GetMemoryBytes())},
		{"Snapshot", snapshot(s)},
		{"In the store", stored(w.GetCopies(), now)},
		{"Deleted", deletedIn(s, now)},
		{"Addresses", strings.Join(s.GetAddresses(), ", ")},
		{"Ports", portList(s.GetPorts())},
		{"Gate", gate(s)},
		{"Slept / woken", fmt.Sprintf("%d / %d times", s.GetHibernations(), s.GetWakes())},
		{"Age", ago(now, s.GetCreatedUnixMs())},
		{"Processes", fmt.Sprintf("holder %d, sandbox %s", s.GetHolderPid(), pid(s.GetSandboxPid()))},
		{"runsc", s.GetRunscVersion()},
	} {
		if fact[1] != "" {
			t.row(fact[0]+":", fact[1])
		}
	}
	return t.flush()
}

// identity tells under which claim it runs; "" without one.
func identity(s *shimv1.StatusResponse) string {
	text := s.GetIdentity()
	if s.GetEpoch() != 0 {
		text += fmt.Sprintf(", epoch %d", s.GetEpoch())
	}
	if s.GetUnconfirmed() {
		text += "; not confirmed: another node may run it, too (fencing = relaxed)"
	}
	return text
}

// gate tells why it is the slower way that is open.
func gate(s *shimv1.StatusResponse) string {
	if s.GetGate() != "open" || s.GetSlowPath() == "" {
		return s.GetGate()
	}
	return "open, through the pod's network stack: " + s.GetSlowPath()
}

func snapshot(s *shimv1.StatusResponse) string {
	if s.GetImageBytes() == 0 {
		return none
	}
	return fmt.Sprintf("%s, sequence %d", humanBytes(s.GetImageBytes()), s.GetSequence())
}

// deletedIn tells when delete-after ends a sleeper; "" where it doesn't.
func deletedIn(s *shimv1.StatusResponse, now time.Time) string {
	at := expire.At(s)
	if at.IsZero() {
		return ""
	}
	return "in " + humanDuration(max(at.Sub(now), 0)) + ", unless it is woken: delete-after"
}

// stored tells which snapshot the store has, and why it lacks a newer one; "" without a store.
func stored(c *daemonv1.Copies, now time.Time) string {
	if c == nil {
		return ""
	}
	text := "nothing"
	if c.GetDurableSequence() != 0 {
		text = fmt.Sprintf("sequence %d, uploaded %s ago", c.GetDurableSequence(), ago(now, c.GetDurableUnixMs()))
	}
	if c.GetLackingUnixMs() != 0 {
		text += fmt.Sprintf("; %d has been waiting for %s", c.GetLocalSequence(), ago(now, c.GetLackingUnixMs()))
	}
	if c.GetUploading() {
		text += fmt.Sprintf("; %s were sent", humanBytes(c.GetSentBytes()))
	}
	switch {
	case c.GetFinal():
		text += "; not tried again: " + c.GetError()
	case c.GetError() != "":
		text += "; tried again: " + c.GetError()
	}
	return text
}

func pid(n uint32) string {
	if n == 0 {
		return none
	}
	return strconv.Itoa(int(n))
}

func printBlockers(out io.Writer, blockers []*shimv1.Reason) error {
	if len(blockers) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nCan't hibernate now:")
	for _, b := range blockers {
		fmt.Fprintf(out, "  - %s [%s]\n", b.GetDetail(), b.GetCode())
	}
	return nil
}

func printContainers(out io.Writer, containers []*shimv1.Container) error {
	if len(containers) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nContainers:")
	t := newTable(out)
	t.row("  ID", "STATE", "EXECS")
	for _, c := range containers {
		t.row("  "+c.GetId(), c.GetState(), strconv.Itoa(int(c.GetExecs())))
	}
	return t.flush()
}

// printTransition writes one by stage. Stages overlap, so each has its start too.
func printTransition(out io.Writer, title string, tr *shimv1.Transition, now time.Time) error {
	if tr.GetId() == "" {
		return nil
	}
	fmt.Fprintf(out, "\n%s (%s): %s after %s, %s ago, reason %s\n", title, tr.GetId(), tr.GetOutcome(),
		humanMillis(tr.GetTotalMs()), ago(now, tr.GetStartedUnixMs()), orNone(tr.GetReason()))
	if tr.GetDetail() != "" {
		fmt.Fprintln(out, "  "+tr.GetDetail())
	}
	steps := slices.SortedStableFunc(slices.Values(tr.GetSteps()), func(a, b *shimv1.Step) int {
		return int(1000 * (a.GetStartMs() - b.GetStartMs()))
	})
	t := newTable(out)
	if len(steps) > 0 {
		t.row("  STAGE", "TOOK", "FROM")
	}
	for _, step := range steps {
		t.row("  "+step.GetName(), humanMillis(step.GetMs()), "+"+humanMillis(step.GetStartMs()))
	}
	if err := t.flush(); err != nil {
		return err
	}
	return printLadder(out, tr.GetLadder())
}

func printLadder(out io.Writer, rungs []*shimv1.Rung) error {
	if len(rungs) == 0 {
		return nil
	}
	t := newTable(out)
	t.row("  HEALTH", "RESULT", "DETAIL")
	for _, rung := range rungs {
		t.row("  "+rung.GetName(), result(rung), rung.GetDetail())
	}
	return t.flush()
}

func result(r *shimv1.Rung) string {
	switch {
	case !r.GetOk():
		return "failed"
	case r.GetRepaired():
		return "repaired"
	}
	return "ok"
}

// printMended writes what was mended of the network besides the wakes.
func printMended(out io.Writer, rungs []*shimv1.Rung, now time.Time) error {
	if len(rungs) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nMended besides:")
	t := newTable(out)
	for _, rung := range rungs {
		t.row("  "+rung.GetName(), result(rung), ago(now, rung.GetAtUnixMs())+" ago", rung.GetDetail())
	}
	return t.flush()
}

func printSettings(out io.Writer, settings []*shimv1.Setting) error {
	if len(settings) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nSettings:")
	t := newTable(out)
	t.row("  KEY", "VALUE", "FROM")
	for _, s := range settings {
		t.row("  "+s.GetKey(), orNone(s.GetValue()), s.GetSource())
	}
	return t.flush()
}

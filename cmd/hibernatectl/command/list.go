package command

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/expire"
)

const listHelp = `Lists the workloads of this node.

STATE tells the state and for how long. IDLE is the time since the last activity, SLEEPS IN what is left of the idle
timeout, or "no" and why not; both come from hibernated. MEMORY is what it takes now, SNAPSHOT the size of its
checkpoint on disk. COPIES tells the sequence of the snapshot on this node, and of the newest one in the store; "late" for how
long the store has been without the newest, "stuck" when its upload is not tried again, "over quota" when store-quota allows no more: see
hibernatectl inspect. "deleted in" stands in STATE when delete-after comes near: a wake ends that.`

func newList(o *options) *cobra.Command {
	var whole bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the workloads", Long: listHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readFleet(o.runDir)
			if err != nil {
				return err
			}
			ctx, cancel := o.deadline(cmd.Context(), 10*time.Second)
			defer cancel()
			all, noDaemon := f.askAll(ctx, o.runDir)
			notes := o.freezes()
			addFrozen(all, notes)
			if f.broken != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: records that can't be read:", f.broken)
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), &daemonv1.ListResponse{Workloads: all})
			}
			if noDaemon != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", daemonWarning(noDaemon))
			}
			for _, note := range []string{o.cordoned(), frozenNote(notes)} {
				if note != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
				}
			}
			return printList(cmd.OutOrStdout(), all, o.now(), whole)
		},
	}
	cmd.Flags().BoolVar(&whole, "no-trunc", false, "don't shorten IDs")
	return cmd
}

func daemonWarning(err error) string {
	if errors.Is(err, errNoDaemon) {
		return "hibernated is not running: nothing goes to sleep by itself; what sleeps still wakes"
	}
	return err.Error()
}

func printList(out io.Writer, all []*daemonv1.Workload, now time.Time, whole bool) error {
	t := newTable(out)
	t.row("NAMESPACE", "ID", "STATE", "IDLE", "SLEEPS IN", "MEMORY", "SNAPSHOT", "COPIES", "WAKES", "PORTS", "AGE")
	for _, w := range all {
		s := w.GetStatus()
		id := s.GetId()
		if !whole {
			id = shortID(id)
		}
		t.row(s.GetNamespace(), id, stateFor(w, now), idleFor(w), sleepsIn(w), memory(s), humanBytes(s.GetImageBytes()), copies(w, now),
			strconv.FormatUint(s.GetWakes(), 10), portList(s.GetPorts()), ago(now, s.GetCreatedUnixMs()))
	}
	return t.flush()
}

// stateFor is the state, and since when.
func stateFor(w *daemonv1.Workload, now time.Time) string {
	if w.GetUnreachable() != "" {
		return "unreachable"
	}
	s := w.GetStatus()
	state := s.GetState()
	if s.GetStateSinceUnixMs() != 0 {
		state += " " + ago(now, s.GetStateSinceUnixMs())
	}
	if s.GetState() == "asleep" && s.GetSandboxPid() != 0 {
		state += ", standby"
	}
	if at := expire.At(s); !at.IsZero() && at.Sub(now) <= expire.Near(expire.After(s)) {
		state += ", deleted in " + humanDuration(max(at.Sub(now), 0))
	}
	return state
}

func idleFor(w *daemonv1.Workload) string {
	if w.GetIdle() == nil || w.GetStatus().GetState() != "awake" {
		return none
	}
	return humanDuration(time.Duration(w.GetIdle().GetIdleForMs()) * time.Millisecond)
}

// sleepsIn is the time left, or the first reason why there is none.
func sleepsIn(w *daemonv1.Workload) string {
	idle, s := w.GetIdle(), w.GetStatus()
	switch {
	case s.GetState() == "awake" && len(s.GetBlockers()) > 0 && s.GetBlockers()[0].GetCode() == "frozen": // known without hibernated, too
		return "no: frozen"
	case s.GetState() != "awake" || idle == nil:
		return none
	case idle.GetSleepsInMs() >= 0:
		return humanDuration(time.Duration(idle.GetSleepsInMs()) * time.Millisecond)
	case len(s.GetBlockers()) > 0:
		return "no: " + s.GetBlockers()[0].GetCode()
	case idle.GetMode() != "" && idle.GetMode() != "auto":
		return "no: mode-" + idle.GetMode()
	}
	return "no"
}

// copies tells in short where the snapshots are.
func copies(w *daemonv1.Workload, now time.Time) string {
	c, local := w.GetCopies(), w.GetStatus().GetSequence()
	if c != nil {
		local = c.GetLocalSequence()
	}
	var places []string
	if local != 0 {
		places = append(places, fmt.Sprintf("local %d", local))
	}
	if c.GetDurableSequence() != 0 {
		places = append(places, fmt.Sprintf("store %d", c.GetDurableSequence()))
	}
	text := orNone(strings.Join(places, ", "))
	switch {
	case c.GetOverQuota():
		text += " (over quota)"
	case c.GetFinal():
		text += " (stuck)"
	case c.GetLackingUnixMs() != 0:
		text += " (late " + ago(now, c.GetLackingUnixMs()) + ")"
	}
	return text
}

// memory of what sleeps is that of a few small processes, which the shim's figure does not count.
func memory(s *shimv1.StatusResponse) string { return humanBytes(s.GetMemoryBytes()) }

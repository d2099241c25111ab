package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
)

const freezeHelp = `Has what is awake stay awake: hibernated puts nothing to sleep any more, be it idle or wanted for its memory. What sleeps goes on
sleeping, and wakes as ever (hibernatectl wake --all wakes it).

Without MATCH it is the whole node. MATCH is ID or NAMESPACE/ID, with * and ? as in file names: 'default/*', 'web-*'. Quote it, or the shell
takes it for files.

A sleep that is asked for by name still happens: hibernatectl hibernate, drain and move, a stop with on-stop = hibernate; so does the sleep of
a workload with an identity whose node's lease ends. It holds until hibernatectl unfreeze, whatever is restarted.`

const unfreezeHelp = `Ends hibernatectl freeze: workloads sleep again when they are idle.

Without MATCH all freezes of the node end; with it the one of that very MATCH.`

func newFreeze(o *options) *cobra.Command {
	var why string
	var untilBoot bool
	cmd := &cobra.Command{
		Use: "freeze [MATCH]", Short: "Have workloads stay awake", Long: freezeHelp, Args: matchArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := o.cordonDirs()
			if err != nil {
				return err
			}
			dir := dirs[1]
			if untilBoot {
				dir = dirs[0]
			}
			note := freeze.Note{Match: match(args, freeze.Node), Since: o.now().UTC(), Why: why, UntilBoot: untilBoot}
			if err := freeze.Write(dir, note); err != nil {
				return err
			}
			about := ""
			if len(args) > 0 {
				about = " that " + note.Match + " matches"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "frozen: nothing%s goes to sleep by itself, until hibernatectl unfreeze%s\n", about, spaced(args))
			return err
		},
	}
	cmd.Flags().StringVar(&why, "reason", "", "`text` that is shown to others")
	cmd.Flags().BoolVar(&untilBoot, "until-boot", false, "only until the machine's next boot")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

func newUnfreeze(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unfreeze [MATCH]", Short: "Have workloads sleep again", Long: unfreezeHelp, Args: matchArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := o.cordonDirs()
			if err != nil {
				return err
			}
			removed, err := freeze.Remove(match(args, ""), dirs...)
			if err != nil {
				return err
			}
			left, err := freeze.Read(dirs...)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case len(removed) == 0 && len(args) > 0:
				return &missingError{text: fmt.Sprintf("there is no freeze of %q%s", args[0], others(left))}
			case len(removed) == 0:
				_, err = fmt.Fprintln(out, "nothing was frozen")
			default:
				_, err = fmt.Fprintf(out, "no longer frozen: %s\n", matches(removed))
			}
			for _, note := range left {
				fmt.Fprintln(out, "still:", note)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

// matchArg accepts one match at most.
func matchArg(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("one MATCH at most is wanted (quote it: the shell makes files of * and ?); got %q", args)}
	}
	for _, a := range args {
		if err := freeze.Check(a); err != nil {
			return usageError{err}
		}
	}
	return nil
}

func match(args []string, without string) string {
	if len(args) == 0 {
		return without
	}
	return args[0]
}

func spaced(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return fmt.Sprintf(" '%s'", args[0])
}

// others lists notes for the end of a sentence; "" without one.
func others(all freeze.Notes) string {
	if len(all) == 0 {
		return ""
	}
	return "; there is " + matches(all)
}

// matches lists those of notes.
func matches(all freeze.Notes) string {
	var names []string
	for _, n := range all {
		if n.Match == freeze.Node {
			n.Match = "the node"
		}
		names = append(names, n.Match)
	}
	return strings.Join(names, ", ")
}

// freezes are the node's notes; what can't be read is told by doctor.
func (o *options) freezes() freeze.Notes {
	dirs, err := o.cordonDirs()
	if err != nil {
		return nil
	}
	notes, _ := freeze.Read(dirs...)
	return notes
}

// addFrozen puts the notes in front of what keeps workloads awake.
func addFrozen(all []*daemonv1.Workload, notes freeze.Notes) {
	for _, w := range all {
		s := w.GetStatus()
		if why := frozen(notes, s.GetNamespace(), s.GetId()); why != nil && s.GetState() == "awake" {
			s.Blockers = append([]*shimv1.Reason{why}, s.GetBlockers()...)
			if w.Idle != nil {
				w.Idle.SleepsInMs = -1
			}
		}
	}
}

// frozen is why a note keeps a workload awake, as hibernated has it; nil when none does.
func frozen(notes freeze.Notes, namespace, id string) *shimv1.Reason {
	note := notes.Of(namespace, id)
	if note == nil {
		return nil
	}
	return &shimv1.Reason{Code: "frozen", Detail: note.String() + ": hibernatectl unfreeze"}
}

// frozenNote is a line about the notes; empty without one.
func frozenNote(notes freeze.Notes) string {
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.String())
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "; ") + ": nothing of that goes to sleep by itself (hibernatectl unfreeze)"
}

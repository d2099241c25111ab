package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/cordon"
)

const cordonHelp = `Has what sleeps on this node stay asleep: connections and packets wake nothing any more. Who connects waits, as for any
wake, at most for hold-timeout; who still waits when the node is uncordoned is served then.

A wake that is asked for by name still happens: hibernatectl wake, an exec, a signal that is delivered, the start of a container. What is
awake runs on, and sleeps when it is idle. It holds until hibernatectl uncordon, whatever is restarted.`

const uncordonHelp = `Ends hibernatectl cordon, or the cordon of a drain: connections and packets wake what sleeps again.`

func newCordon(o *options) *cobra.Command {
	var why string
	var untilBoot bool
	cmd := &cobra.Command{
		Use: "cordon", Short: "Have sleepers stay asleep, whoever connects", Long: cordonHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.cordon(why, untilBoot); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "cordoned: what sleeps is woken by request only, until hibernatectl uncordon")
			return err
		},
	}
	cmd.Flags().StringVar(&why, "reason", "", "`text` that is shown to others")
	cmd.Flags().BoolVar(&untilBoot, "until-boot", false, "only until the machine's next boot")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

func newUncordon(o *options) *cobra.Command {
	var untilBoot bool
	cmd := &cobra.Command{
		Use: "uncordon", Short: "Have connections wake what sleeps again", Long: uncordonHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dirs, err := o.cordonDirs()
			if err != nil {
				return err
			}
			if untilBoot {
				dirs = dirs[:1]
			}
			removed, err := cordon.Remove(dirs...)
			if err != nil {
				return err
			}
			text := "no longer cordoned"
			if !removed {
				text = "it was not cordoned"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&untilBoot, "until-boot", false, "end only one that would end with the next boot")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	return cmd
}

// cordonDirs are where a note may be: until the next boot, and for good.
func (o *options) cordonDirs() ([]string, error) {
	data := o.dataDir
	if data == "" {
		cfg, err := config.Load(config.Input{File: o.config})
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		data = cfg.DataDir
	}
	return []string{o.runDir, data}, nil
}

// cordon leaves the note.
func (o *options) cordon(why string, untilBoot bool) error {
	dirs, err := o.cordonDirs()
	if err != nil {
		return err
	}
	dir := dirs[1]
	if untilBoot {
		dir = dirs[0]
	}
	return cordon.Write(dir, cordon.Note{Since: o.now().UTC(), Why: why, UntilBoot: untilBoot})
}

// cordoned is a line about the note; empty without one.
func (o *options) cordoned() string {
	dirs, err := o.cordonDirs()
	if err != nil {
		return ""
	}
	switch note, err := cordon.Read(dirs...); {
	case err != nil:
		return err.Error()
	case note != nil:
		return note.String() + ": sleepers are woken by request only (hibernatectl uncordon)"
	}
	return ""
}

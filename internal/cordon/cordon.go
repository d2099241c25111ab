// Package cordon is a node's note that its sleepers stay asleep: none of them is woken by what comes from outside, a connection or a
// packet, until the note is gone. Whoever asks for a wake by name still gets it: hibernatectl wake, an exec, a signal, a start.
//
// The note is a file, so that it holds whoever is restarted: in the data directory it outlives the machine's run, in the run directory
// only the programs.
//
//	err := cordon.Write(dataDir, cordon.Note{Since: time.Now(), Why: "new kernel"})
//	note, err := cordon.Read(runDir, dataDir) // nil: there is none
package cordon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// name of the file. No workload's directory begins with a dot.
const name = ".cordon.json"

// Note says since when, and why in a person's words.
type Note struct {
	Since time.Time `json:"since"` // UTC
	Why   string    `json:"why,omitempty"`
	// UntilBoot is set for a note that is lost with the run directory.
	UntilBoot bool `json:"until_boot,omitempty"`
}

// String is the note for a person.
func (n *Note) String() string {
	text := "the node is cordoned since " + n.Since.UTC().Format(time.RFC3339)
	if n.Why != "" {
		text += " (" + n.Why + ")"
	}
	return text
}

// Write leaves the note in dir, in place of one that is there.
func Write(dir string, n Note) error {
	data, err := json.Marshal(n)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, name), append(data, '\n'), 0o600, atomicfile.Options{Sync: true})
	}
	if err != nil {
		return fmt.Errorf("cordon: %w", err)
	}
	return nil
}

// Read looks into each of the directories, the first note counts; nil: there is none. A note that can't be read is one, of an unknown time:
// somebody has wanted it.
func Read(dirs ...string) (*Note, error) {
	var failed error
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("cordon: %w", err))
		default:
			n := &Note{}
			if err := json.Unmarshal(data, n); err != nil {
				return &Note{Why: "its note in " + dir + " can't be read: " + err.Error()}, nil
			}
			return n, nil
		}
	}
	return nil, failed
}

// Remove takes the note out of each of the directories. removed: there was one.
func Remove(dirs ...string) (removed bool, err error) {
	for _, dir := range dirs {
		e := os.Remove(filepath.Join(dir, name))
		switch {
		case e == nil:
			removed = true
		case !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, fmt.Errorf("uncordon: %w", e))
		}
	}
	return removed, err
}

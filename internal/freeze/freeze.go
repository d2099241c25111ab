// Package freeze is a node's notes that workloads stay awake: hibernated puts none of those that a note matches to sleep, be it since
// they are idle or to make room, until the note is gone. Whoever asks for a sleep by name still gets it: hibernatectl hibernate, drain and
// move, a stop with on-stop = hibernate.
//
// A note is a file, so that it holds whoever is restarted: in the data directory it outlives the machine's run, in the run directory only
// the programs. Its match is ID or NAMESPACE/ID, with * and ? as in file names; each match has one note.
//
//	err := freeze.Write(dataDir, freeze.Note{Match: "default/web-*", Since: time.Now(), Why: "the release"})
//	notes, err := freeze.Read(runDir, dataDir)
//	note := notes.Of("default", "web-1") // nil: it may sleep
package freeze

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Files are called prefix, a digest of the match, suffix. No workload's directory begins with a dot.
const (
	prefix = ".freeze-"
	suffix = ".json"
)

// Node is the match of all workloads.
const Node = "*"

// Note says which workloads, since when, and why in a person's words.
type Note struct {
	Match string    `json:"match"`
	Since time.Time `json:"since"` // UTC
	Why   string    `json:"why,omitempty"`
	// UntilBoot is set for a note that is lost with the run directory.
	UntilBoot bool `json:"until_boot,omitempty"`
}

// String is the note for a person.
func (n Note) String() string {
	what := n.Match
	if what == Node {
		what = "the node"
	}
	text := what + " is frozen since " + n.Since.UTC().Format(time.RFC3339)
	if n.Why != "" {
		text += " (" + n.Why + ")"
	}
	return text
}

// Matches reports whether the note is about a workload.
func (n Note) Matches(namespace, id string) bool {
	of, name, both := strings.Cut(n.Match, "/")
	if !both {
		of, name = "*", n.Match
	}
	return fits(of, namespace) && fits(name, id)
}

func fits(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return ok && err == nil
}

// Check says what is wrong with a match.
func Check(match string) error {
	parts := strings.Split(match, "/")
	if len(parts) > 2 || slices.Contains(parts, "") {
		return fmt.Errorf("%q is neither ID nor NAMESPACE/ID, with * and ? for what may stand there", match)
	}
	for _, p := range parts {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%q: a bracket has no end", match)
		}
	}
	return nil
}

// Notes are those of a node.
type Notes []Note

// Of is the first note about a workload; nil: there is none.
func (all Notes) Of(namespace, id string) *Note {
	for i := range all {
		if all[i].Matches(namespace, id) {
			return &all[i]
		}
	}
	return nil
}

func file(dir, match string) string {
	sum := sha256.Sum256([]byte(match))
	return filepath.Join(dir, prefix+hex.EncodeToString(sum[:8])+suffix)
}

// Write leaves the note in dir, in place of one of the same match.
func Write(dir string, n Note) error {
	err := Check(n.Match)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	var data []byte
	if err == nil {
		data, err = json.Marshal(n)
	}
	if err == nil {
		err = atomicfile.Write(file(dir, n.Match), append(data, '\n'), 0o600, atomicfile.Options{Sync: true})
	}
	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	return nil
}

// Read looks into each of the directories; the notes are in the order of their matches. One that can't be read is about the whole node, since
// an unknown time: somebody has wanted it.
func Read(dirs ...string) (all Notes, err error) {
	for _, dir := range dirs {
		entries, e := os.ReadDir(dir)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("freeze: %w", e))
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix) && strings.HasSuffix(entry.Name(), suffix) {
				all = append(all, read(filepath.Join(dir, entry.Name()))...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Note) int { return strings.Compare(a.Match, b.Match) })
	return all, err
}

func read(path string) Notes {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	var n Note
	if err == nil {
		if err = json.Unmarshal(data, &n); err == nil {
			err = Check(n.Match)
		}
	}
	if err != nil {
		return Notes{{Match: Node, Why: "the note " + path + " can't be read: " + err.Error()}}
	}
	return Notes{n}
}

// Remove takes the note of a match out of each of the directories; "" for all notes. removed are those that were there.
func Remove(match string, dirs ...string) (removed Notes, err error) {
	for _, dir := range dirs {
		entries, e := os.ReadDir(dir)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("unfreeze: %w", e))
		}
		for _, entry := range entries {
			name := filepath.Join(dir, entry.Name())
			if !strings.HasPrefix(entry.Name(), prefix) || match != "" && name != file(dir, match) {
				continue
			}
			was := read(name)
			if e := os.Remove(name); e != nil {
				if !errors.Is(e, fs.ErrNotExist) {
					err = errors.Join(err, fmt.Errorf("unfreeze: %w", e))
				}
				continue
			}
			removed = append(removed, was...)
		}
	}
	return removed, err
}

// Reader remembers the notes for a moment, for who asks often. Safe for concurrent use.
type Reader struct {
	Dirs []string
	// Every is how old an answer may be; 0: not at all.
	Every time.Duration

	mu   sync.Mutex // guards the fields below
	last Notes
	at   time.Time
}

// Notes are those of now. What can't be read is as it was last.
func (r *Reader) Notes() Notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.at.IsZero() || now.Sub(r.at) >= r.Every {
		if all, err := Read(r.Dirs...); err == nil {
			r.last = all
		}
		r.at = now
	}
	return r.last
}

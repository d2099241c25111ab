// Package journal records what a shim is about to do to its workload, before it does it.
//
// An operation ("hibernate", "wake", …) has named steps. Each step is written before it is taken, so whoever finds the
// file after a crash knows how far the shim may have come: that is what `delete` reads. The file lies in the bundle,
// and a bundle never outlives the machine's run: a rename is enough against a crash of the process, and what must
// outlive the machine is in the snapshot's head. So nothing here is fsynced, and a step costs microseconds.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Done is the step of an operation that ended.
const Done = "done"

// Entry is the journal's one line: the operation under way and its newest step.
type Entry struct {
	Operation string    `json:"operation"`
	ID        string    `json:"id"`
	Step      string    `json:"step"`
	Time      time.Time `json:"time"`
}

// Journal writes one file. Its methods may be called at the same time: the steps of a wake overlap.
type Journal struct {
	path string
	now  func() time.Time

	mu    sync.Mutex // guards the fields below and the file
	entry Entry
}

// New returns a journal that writes to path. It touches nothing before Begin.
func New(path string) *Journal {
	return &Journal{path: path, now: time.Now}
}

// Begin records that an operation starts. An earlier one that wasn't finished is replaced.
func (j *Journal) Begin(operation, id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entry = Entry{Operation: operation, ID: id}
	return j.write("begin")
}

// Step records that the operation is about to take a step.
func (j *Journal) Step(step string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.write(step)
}

// End records that the operation ended, well or not.
func (j *Journal) End() error { return j.Step(Done) }

func (j *Journal) write(step string) error {
	j.entry.Step, j.entry.Time = step, j.now()
	data, err := json.Marshal(j.entry)
	if err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	temporary := j.path + ".new"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o600); err != nil {
		_ = errors.Join(os.Remove(temporary), os.Remove(j.path)) // better none than one that tells of an earlier step
		return fmt.Errorf("journal: %w", err)
	}
	if err := os.Rename(temporary, j.path); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Read returns the entry of the journal at path; the zero Entry when there is none.
func Read(path string) (Entry, error) {
	var entry Entry
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return entry, nil
	}
	if err != nil {
		return entry, fmt.Errorf("journal: %w", err)
	}
	if err := json.Unmarshal(data, &entry); err != nil {
		return entry, fmt.Errorf("journal %s is damaged: %w", path, err)
	}
	return entry, nil
}

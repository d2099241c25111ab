package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Record is what a shim leaves for those who look for it, in
// <run-dir>/shims/<namespace>/<id>.json.
type Record struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	Identity  string `json:"identity,omitempty"` // with the pod's namespace before it
	Address   string `json:"address"`            // of the shim's ttrpc socket, unix:///…
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/<pid>/stat, in ticks since boot
	Bundle    string `json:"bundle"`
	Version   string `json:"version"` // of the shim's program
}

// Alive reports whether the shim that wrote the record still runs: a process
// with its pid exists, started at the same time, and is no zombie.
func (r Record) Alive() bool {
	state, start, err := processStat(r.Pid)
	return err == nil && start == r.StartTime && state != 'Z' && state != 'X'
}

// StartTime returns what a record of the process pid has as its StartTime.
func StartTime(pid int) (uint64, error) {
	_, start, err := processStat(pid)
	return start, err
}

// WriteRecord writes or replaces a record.
func WriteRecord(runDir string, r Record) error {
	path, err := recordPath(runDir, r.Namespace, r.ID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record of %s/%s: %w", r.Namespace, r.ID, err)
	}
	for tries := 3; ; tries-- {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			// The run directory doesn't outlive the machine's boot: no fsync.
			err = atomicfile.Write(path, data, 0o600, atomicfile.Options{})
		}
		// RemoveRecord of the namespace's last one may have come between.
		if tries == 0 || !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("record of %s/%s: %w", r.Namespace, r.ID, err)
	}
	return nil
}

// ReadRecord reads the record of one workload. The error is fs.ErrNotExist
// when there is none.
func ReadRecord(runDir, namespace, id string) (Record, error) {
	path, err := recordPath(runDir, namespace, id)
	if err != nil {
		return Record{}, err
	}
	return readRecord(path)
}

// ListRecords returns all records, of shims alive or not, by namespace and id.
// Those that can't be read are told in the error, beside the ones that can. A
// run directory without records, or none at all, is an empty list.
func ListRecords(runDir string) ([]Record, error) {
	paths, err := filepath.Glob(filepath.Join(escape(runDir), "shims", "*", "*.json"))
	if err != nil {
		return nil, err
	}
	var records []Record
	var failed []error
	for _, path := range paths {
		r, err := readRecord(path)
		switch {
		case err == nil:
			records = append(records, r)
		case !errors.Is(err, fs.ErrNotExist): // removed meanwhile
			failed = append(failed, err)
		}
	}
	return records, errors.Join(failed...)
}

// RemoveRecord removes a record; none is no error.
func RemoveRecord(runDir, namespace, id string) error {
	path, err := recordPath(runDir, namespace, id)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // only when it was the namespace's last
	return nil
}

func recordPath(runDir, namespace, id string) (string, error) {
	if err := errors.Join(validName(namespace), validName(id)); err != nil {
		return "", fmt.Errorf("record of %s/%s: %w", namespace, id, err)
	}
	return filepath.Join(runDir, "shims", namespace, id+".json"), nil
}

func readRecord(path string) (Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("record %s: %w", path, err)
	}
	return r, nil
}

// escape makes a path literal for Glob.
func escape(path string) string {
	var b bytes.Buffer
	for i := range len(path) {
		if bytes.IndexByte([]byte(`*?[\`), path[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// processStat returns fields 3 and 22 of /proc/<pid>/stat. The name before
// them may hold anything, so they are counted from its closing parenthesis.
func processStat(pid int) (state byte, start uint64, err error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%s has %d fields after the name", path, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return fields[0][0], start, err
}

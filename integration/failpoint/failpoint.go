// Package failpoint makes single calls of runsc fail, hang or die in tests.
//
// The program runsc-fp takes runsc's place. Beside it are a link to the real runsc, and a directory of *rules*, one file for
// each container. A call that no rule is about becomes the real runsc by exec, so that streams, descriptors and parents are
// as without it. A *late* fault happens after the real runsc has done its work: the work is done, and nobody learns of it.
//
//	d, err := failpoint.Install(dir, program, runsc)
//	… runsc = d.Binary() in the configuration …
//	err = d.Set("redis", failpoint.Rule{Command: "pause", Fault: failpoint.Hang}) // the next pause hangs
package failpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Fault is what becomes of a call.
type Fault string

// The faults. The late ones come after the real runsc has ended.
const (
	Fail     Fault = "fail"      // it exits as runsc does on an error, and has done nothing
	Hang     Fault = "hang"      // it does nothing and never ends
	Die      Fault = "die"       // it is killed, and has done nothing
	LateFail Fault = "late fail" // it has done its work, and exits as on an error
	LateHang Fault = "late hang"
	LateDie  Fault = "late die"
	Unnoted  Fault = "unnoted" // it has done its work, and is killed before its state file says so
	Cut      Fault = "cut"     // the real runsc is killed After it was begun
	Freeze   Fault = "freeze"  // of create: the real runsc is stopped when its sandbox's process is there, before it tells of it
)

// A Rule is about one command of runsc for one container.
type Rule struct {
	Command string        // as create, or exec
	Skip    int           // so many calls of it pass first
	Times   int           // so many calls then have the fault; 0 is one
	Fault   Fault         //
	Message string        // the error; one of the rule's own when empty
	After   time.Duration // of Cut
	Hits    int           // how often it has happened
}

// Dir is an installed runsc-fp.
type Dir string

// Install puts the wrapper and a link to the real runsc into dir, which is made. Both paths are absolute.
func Install(dir, wrapper, runsc string) (Dir, error) {
	if err := os.MkdirAll(filepath.Join(dir, "rules"), 0o700); err != nil {
		return "", err
	}
	data, err := os.ReadFile(wrapper)
	if err != nil {
		return "", err
	}
	d := Dir(dir)
	return d, errors.Join(os.WriteFile(d.Binary(), data, 0o700), os.Symlink(runsc, d.real()))
}

// Binary is the path of the wrapper.
func (d Dir) Binary() string { return filepath.Join(string(d), "runsc-fp") }

func (d Dir) real() string           { return filepath.Join(string(d), "runsc") }
func (d Dir) rules(id string) string { return filepath.Join(string(d), "rules", id) }

// Set replaces the rules about a container. Without any, all its calls pass.
func (d Dir) Set(id string, rules ...Rule) error {
	if len(rules) == 0 {
		err := os.Remove(d.rules(id))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	data, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	temporary := d.rules(id) + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, d.rules(id))
}

// Hits is how many faults have happened by the container's rules.
func (d Dir) Hits(id string) (int, error) {
	rules, err := read(d.rules(id))
	n := 0
	for _, r := range rules {
		n += r.Hits
	}
	return n, err
}

func read(path string) ([]Rule, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rules []Rule
	if err := json.Unmarshal(data, &rules); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rules, nil
}

// take counts a call and finds its fault; none is a rule without Fault.
func (d Dir) take(command, id string) (Rule, error) {
	lock, err := os.Open(filepath.Join(string(d), "rules"))
	if err != nil {
		return Rule{}, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return Rule{}, err
	}
	rules, err := read(d.rules(id))
	if errors.Is(err, fs.ErrNotExist) {
		return Rule{}, nil
	}
	for i := range rules {
		r := &rules[i]
		switch {
		case err != nil:
			return Rule{}, err
		case r.Command != command || r.Hits >= max(r.Times, 1):
		case r.Skip > 0:
			r.Skip--
			return Rule{}, d.Set(id, rules...)
		default:
			r.Hits++
			return *r, d.Set(id, rules...)
		}
	}
	return Rule{}, err
}

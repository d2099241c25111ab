package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// sweeps bounds how often killCommands looks again: what it kills may just have started another process.
const sweeps = 20

// killCommands ends the runsc commands of a container, and what they have started: those of a shim that is gone, or one
// that was killed in the middle of making a sandbox, which it may have left with no state that `runsc delete` could find.
// One that went on would make a sandbox behind the back of a clean-up that found none.
func killCommands(root, id string) error {
	var errs []error
	for range sweeps {
		found, err := sweep(root, id)
		errs = append(errs, err)
		if !found || err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return errors.Join(errs...)
}

// sweep kills what runs now.
func sweep(root, id string) (found bool, err error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false, err
	}
	for _, dir := range all {
		pid, e := strconv.Atoi(filepath.Base(dir))
		if e != nil || pid == os.Getpid() {
			continue
		}
		p := identify(pid) // before its arguments are read, so that they are of the process that is killed
		if arguments, e := os.ReadFile(filepath.Join(dir, "cmdline")); e == nil && isCommand(arguments, root, id) {
			found = true
			err = errors.Join(err, p.kill())
		}
	}
	if err != nil {
		return found, fmt.Errorf("commands of runsc: %w", err)
	}
	return found, nil
}

// isCommand says whether arguments, each ended by a zero byte, are of runsc for the container id below root. Its sandbox
// and gofers have such arguments, too; the sidecar is not told the id, and known by the root, which is the workload's own.
func isCommand(arguments []byte, root, id string) bool {
	words := bytes.Split(bytes.TrimSuffix(arguments, []byte{0}), []byte{0})
	has := func(want string) bool {
		return slices.ContainsFunc(words, func(w []byte) bool { return string(w) == want })
	}
	return has("--root="+root) && (has(id) || string(words[0]) == sidecarArgument)
}

// sidecarArgument is the first argument with which runsc starts the sidecar.
const sidecarArgument = "runsc-checkpointgofer"

// killGofer ends the process that serves files to a sandbox that has ended. It ends by itself, by and by.
func killGofer(root, id string) error { return killGoferOf(root, id, id) }

// killGoferOf is killGofer for a container in the sandbox of that id.
func killGoferOf(root, id, sandbox string) error {
	state := memberStateOf(id, sandbox)
	data, err := os.ReadFile(filepath.Join(root, state))
	if err != nil {
		return fmt.Errorf("gofer: %w", err)
	}
	var known struct {
		GoferPid int `json:"goferPid"`
	}
	if err := json.Unmarshal(data, &known); err != nil || known.GoferPid == 0 {
		return fmt.Errorf("gofer: %s names none (%w)", state, err)
	}
	gofer := identify(known.GoferPid)
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", gofer.Pid))
	if err != nil || !isCommand(arguments, root, id) { // it is gone, and its pid may be another's
		return nil
	}
	return gofer.kill()
}

// stateOf is the name of the file in which runsc keeps what it knows of a sandbox.
func stateOf(id string) string { return memberStateOf(id, id) }

// memberStateOf is stateOf for a container in another's sandbox.
func memberStateOf(id, sandbox string) string { return id + "_sandbox:" + sandbox + ".state" }

// removeTraces removes the files of a sandbox that runsc itself doesn't know any more: those of one whose creation was cut
// short, of which `runsc delete` finds no state, or that has ended by itself. No sandbox of that id may run.
func removeTraces(root, id string) error {
	return removeNames(root, "runsc-"+id+".sock", stateOf(id), id+"_sandbox:"+id+".lock")
}

// removeMemberTraces is removeTraces for a container in another's sandbox.
func removeMemberTraces(root, id, sandbox string) error {
	return removeNames(root, memberStateOf(id, sandbox), id+"_sandbox:"+sandbox+".lock")
}

func removeNames(root string, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// killCommands ends the runsc commands of a container whose shim is gone. One that went on would make a sandbox behind
// the back of a clean-up that found none.
func killCommands(root, id string) error {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range all {
		pid, e := strconv.Atoi(filepath.Base(dir))
		if e != nil || pid == os.Getpid() {
			continue
		}
		p := identify(pid) // before its arguments are read, so that they are of the process that is killed
		if arguments, e := os.ReadFile(filepath.Join(dir, "cmdline")); e == nil && isCommand(arguments, root, id) {
			err = errors.Join(err, p.kill())
		}
	}
	if err != nil {
		return fmt.Errorf("commands of runsc: %w", err)
	}
	return nil
}

// isCommand says whether arguments, each ended by a zero byte, are of runsc for the container id below root. Its sandbox
// and gofers have such arguments, too.
func isCommand(arguments []byte, root, id string) bool {
	words := bytes.Split(bytes.TrimSuffix(arguments, []byte{0}), []byte{0})
	has := func(want string) bool {
		return slices.ContainsFunc(words, func(w []byte) bool { return string(w) == want })
	}
	return has("--root="+root) && has(id)
}

// removeTraces removes the files of a sandbox that runsc itself doesn't know any more: those of one whose creation was cut
// short, of which `runsc delete` finds no state. No sandbox of that id may run.
func removeTraces(root, id string) error {
	var errs []error
	for _, name := range []string{"runsc-" + id + ".sock", id + "_sandbox:" + id + ".state", id + "_sandbox:" + id + ".lock"} {
		if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

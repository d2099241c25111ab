package failpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// failed is the status with which runsc ends on an error.
const failed = 128

// Main is the program runsc-fp. It returns the exit status, when it returns.
func Main() int {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return complain(err)
	}
	d := Dir(filepath.Dir(self))
	r, err := d.find(os.Args[1:])
	if err != nil {
		return complain(err)
	}
	switch r.Fault {
	case "":
		return complain(syscall.Exec(d.real(), append([]string{d.real()}, os.Args[1:]...), os.Environ()))
	case LateFail, LateHang, LateDie, Unnoted, Cut, Freeze:
		if err := d.perform(r); err != nil {
			return complain(err)
		}
	}
	switch r.Fault {
	case Hang, LateHang, Freeze:
		for {
			time.Sleep(time.Hour)
		}
	case Die, LateDie, Unnoted, Cut:
		return complain(unix.Kill(os.Getpid(), unix.SIGKILL))
	}
	if r.Message == "" {
		r.Message = "failpoint: " + r.Command
	}
	return fail(r.Message)
}

// find looks for a rule about a call with these arguments: global flags, the command, and the container somewhere.
func (d Dir) find(arguments []string) (Rule, error) {
	command := ""
	for _, a := range arguments {
		if command == "" && !strings.HasPrefix(a, "-") {
			command = a
			continue
		}
		if _, err := os.Stat(d.rules(a)); err == nil && command != "" && filepath.Base(a) == a {
			return d.take(command, a)
		}
	}
	return Rule{}, nil
}

// perform has the real runsc do the work, with this process's streams and descriptors.
func (d Dir) perform(r Rule) error {
	runtime.LockOSThread() // it ends with the thread that began it
	cmd := exec.Command(d.real(), os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for fd := uintptr(3); ; fd++ { // what was given comes first, and this program's own are closed on exec
		flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			break
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "given"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	put := func() error { return nil }
	if r.Fault == Unnoted {
		var err error
		if put, err = keepStates(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	switch r.Fault {
	case Cut:
		time.Sleep(r.After)
		_ = cmd.Process.Kill() // it may be through already
	case Freeze:
		return freeze(cmd.Process)
	}
	_ = cmd.Wait() // how it ended is not what is told
	return put()
}

// keepStates reads the state files below the root that the arguments name. put writes them as they were.
func keepStates() (put func() error, err error) {
	for _, a := range os.Args {
		root, ok := strings.CutPrefix(a, "--root=")
		if !ok {
			continue
		}
		paths, err := filepath.Glob(filepath.Join(root, "*.state"))
		if err != nil || len(paths) == 0 {
			return nil, fmt.Errorf("no state files below %s: %v", root, err)
		}
		states := map[string][]byte{}
		for _, path := range paths {
			if states[path], err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
		return func() (err error) {
			for path, data := range states {
				err = errors.Join(err, os.WriteFile(path, data, 0o640))
			}
			return err
		}, nil
	}
	return nil, errors.New("no --root")
}

// freeze stops a runsc as soon as it has started its sandbox's process, which has not yet told it that it is there. Its
// children are looked for by the kernel's list, which is read faster than the sandbox boots.
func freeze(p *os.Process) error {
	for {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Pid))
		if err != nil {
			return err
		}
		for _, l := range lists {
			children, _ := os.ReadFile(l) // its thread may have ended
			for _, child := range strings.Fields(string(children)) {
				arguments, _ := os.ReadFile("/proc/" + child + "/cmdline")
				if strings.HasPrefix(string(arguments), "runsc-sandbox\x00") {
					return p.Signal(syscall.SIGSTOP)
				}
			}
		}
		if p.Signal(syscall.Signal(0)) != nil {
			return fmt.Errorf("runsc has ended before it could be stopped")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// fail writes the error where runsc does: into the log that its arguments name.
func fail(message string) int {
	for _, a := range os.Args {
		path, ok := strings.CutPrefix(a, "--log=")
		if !ok {
			continue
		}
		line, err := json.Marshal(map[string]any{"msg": message, "level": "error", "time": time.Now()})
		if err != nil {
			return complain(err)
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return complain(err)
		}
		defer f.Close()
		if _, err := f.Write(line); err != nil {
			return complain(err)
		}
	}
	return failed
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "runsc-fp:", err)
	return failed
}

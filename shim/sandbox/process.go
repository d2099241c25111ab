package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process names a process for good: a pid may be used again, with its start time it may not.
type process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, clock ticks since boot
}

// identify returns the process that pid is now; a zero Start when it is gone.
func identify(pid int) process {
	start, _ := startTime(pid)
	return process{Pid: pid, Start: start}
}

func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	end := bytes.LastIndexByte(data, ')') // the command's name may hold anything
	fields := bytes.Fields(data[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("process %d: unreadable stat", pid)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// alive says whether exactly this process is there, and is no zombie that nobody has waited for.
func (p process) alive() bool {
	start, err := startTime(p.Pid)
	return err == nil && p.Start != 0 && start == p.Start && !isZombie(p.Pid)
}

func isZombie(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := data[bytes.LastIndexByte(data, ')')+1:]
	return len(after) > 1 && after[1] == 'Z'
}

// kill sends SIGKILL to exactly this process. One that is gone is no error.
func (p process) kill() error {
	if p.Pid <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	if start, err := startTime(p.Pid); err != nil || start != p.Start {
		return nil // the pid is another's by now
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	return nil
}

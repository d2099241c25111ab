package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Memory is what a workload's processes use, in bytes.
type Memory struct {
	// Sandbox is what its runsc processes use: their own memory, and the memory file behind the programs inside.
	Sandbox uint64
	// Shim and Holder are proportional set sizes, which stay while it sleeps.
	Shim, Holder uint64
	// Processes counts the runsc processes; none while it sleeps.
	Processes int
}

// Memory measures a workload's processes. It never wakes.
func (w *World) Memory(ctx context.Context, id string) (Memory, error) {
	record, err := w.Record(id)
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	if m.Shim, err = PSS(record.Pid); err != nil { // before anything is asked of it, which would fault its program in
		return m, err
	}
	status, err := w.Status(ctx, id)
	if err != nil {
		return m, err
	}
	if m.Holder, err = PSS(int(status.HolderPid)); err != nil {
		return m, err
	}
	all, err := w.Processes()
	if err != nil {
		return m, err
	}
	for _, p := range sandboxOf(all, id) {
		used, err := processMemory(p.Pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended just now
		}
		if err != nil {
			return m, err
		}
		m.Sandbox += used
		m.Processes++
	}
	return m, nil
}

// sandboxOf are a container's runsc processes and all that descend from them.
func sandboxOf(all []Process, id string) []Process {
	in := map[int]bool{}
	for _, p := range all {
		runsc := strings.HasPrefix(filepath.Base(p.Argv[0]), "runsc")
		for _, arg := range p.Argv[1:] {
			in[p.Pid] = in[p.Pid] || runsc && (arg == id || strings.HasSuffix(arg, "/"+id))
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.Pid] && in[p.Parent] {
				in[p.Pid], grown = true, true
			}
		}
	}
	var out []Process
	for _, p := range all {
		if in[p.Pid] {
			out = append(out, p)
		}
	}
	return out
}

// processMemory is a process's own memory and the memory files that it holds open, which are mapped only in part.
func processMemory(pid int) (uint64, error) {
	rollup, err := smapsRollup(pid)
	if err != nil {
		return 0, err
	}
	files, err := memoryFiles(pid)
	return rollup["Pss_Anon"] + rollup["Pss_File"] + files, err
}

// PSS is a process's proportional set size.
func PSS(pid int) (uint64, error) {
	rollup, err := smapsRollup(pid)
	return rollup["Pss"], err
}

// smapsRollup reads the sums over a process's mappings, in bytes.
func smapsRollup(pid int) (map[string]uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return nil, err
	}
	sums := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("smaps_rollup of %d: %w", pid, err)
		}
		sums[strings.TrimSuffix(f[0], ":")] = kib << 10
	}
	return sums, nil
}

// memoryFiles is what the memfds that a process has open take, each file once.
func memoryFiles(pid int) (uint64, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	seen := map[uint64]bool{}
	var bytes uint64
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		target, err := os.Readlink(at)
		if err != nil || !strings.HasPrefix(target, "/memfd:") {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(at, &st); err != nil || seen[st.Ino] {
			continue
		}
		seen[st.Ino] = true
		bytes += uint64(st.Blocks) * 512
	}
	return bytes, nil
}

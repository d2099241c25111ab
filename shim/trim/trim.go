// Package trim makes an idle process small.
//
// Half a shim's memory is its program's own text and constants, mapped as they were touched. A shim whose workload
// sleeps needs little of them. Dropping the mapping of these pages is cheap, and so is getting them back: they stay in
// the page cache, which the kernel may empty when it must and may not while they are mapped by a running process.
package trim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process collects garbage, gives free memory back, and drops the pages of this program's file that are unchanged. It
// takes a few milliseconds; what runs at the same time runs on, and faults its pages in again.
func Process() error {
	debug.FreeOSMemory()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	var errs []error
	for _, r := range unchanged(bytes.NewReader(smaps), self) {
		if err := drop(r); err != nil {
			errs = append(errs, fmt.Errorf("trim %x-%x: %w", r.begin, r.end, err))
		}
	}
	return errors.Join(errs...)
}

// region is a mapping's addresses.
type region struct{ begin, end uintptr }

// unchanged returns the mappings of file that can't be written and hold no page of the process's own: dropping a page
// that was changed, by relocation for example, would lose the change.
func unchanged(smaps io.Reader, file string) []region {
	var (
		out  []region
		last *region // the mapping that the lines are about, when it is one of file's
	)
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"):
			last = readOnly(fields, file)
		case fields[0] == "Anonymous:" && last != nil && len(fields) > 1 && fields[1] == "0":
			out = append(out, *last)
		}
	}
	return out
}

// readOnly decodes a mapping's first line: addresses, permissions, offset, device, inode, file.
func readOnly(fields []string, file string) *region {
	if len(fields) < 6 || strings.Join(fields[5:], " ") != file || (fields[1] != "r-xp" && fields[1] != "r--p") {
		return nil
	}
	first, last, _ := strings.Cut(fields[0], "-")
	begin, err1 := strconv.ParseUint(first, 16, 64)
	end, err2 := strconv.ParseUint(last, 16, 64)
	if err1 != nil || err2 != nil {
		return nil
	}
	return &region{uintptr(begin), uintptr(end)}
}

func drop(r region) error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, r.begin, r.end-r.begin, unix.MADV_DONTNEED)
	if errno != 0 {
		return errno
	}
	return nil
}

package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Held reports whether some process has a workload's directory open, as
// OpenLocal does. It asks the kernel and disturbs nobody who is about to open
// it; a lock elsewhere may be taken for this one, never the other way round.
func Held(dir string) (bool, error) {
	st, err := os.Stat(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("who has the directory: %w", err)
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return false, fmt.Errorf("who has the directory: %w", err)
	}
	defer f.Close()
	// The device isn't compared: some file systems tell another one there.
	inode := ":" + strconv.FormatUint(st.Sys().(*syscall.Stat_t).Ino, 10)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // 1: FLOCK ADVISORY WRITE 712 08:01:131 0 EOF; proc(5)
		if len(fields) >= 6 && fields[1] == "FLOCK" && strings.HasSuffix(fields[5], inode) {
			return true, nil
		}
	}
	return false, lines.Err()
}

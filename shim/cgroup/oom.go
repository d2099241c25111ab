package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SetOOMScore sets a process's oom_score_adj. A kernel that refuses, because
// the shim lacks CAP_SYS_RESOURCE, or a process that has ended, is no error:
// the score is a wish. runsc takes a refusal for the failure of the whole start
// or restore, so its spec should not have one.
func SetOOMScore(pid, score int) error {
	file := filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj")
	err := os.WriteFile(file, []byte(strconv.Itoa(score)), 0)
	for _, fine := range []error{fs.ErrPermission, fs.ErrNotExist, unix.ESRCH} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("oom_score_adj of process %d: %w", pid, err)
	}
	return nil
}

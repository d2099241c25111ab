package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user that a file belongs to; -1 where that is not known.
func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

package admission

import (
	"bytes"
	"errors"
	"os"
	"strconv"
)

// Available reads the kernel's estimate of how much memory can be taken without swapping: the cache that it can drop
// included. See proc(5), MemAvailable.
func Available() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parseAvailable(text)
}

func parseAvailable(text []byte) (uint64, error) {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:")); ok {
			fields := bytes.Fields(rest)
			if len(fields) != 2 || string(fields[1]) != "kB" {
				break
			}
			kib, err := strconv.ParseUint(string(fields[0]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}

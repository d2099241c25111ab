package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units of a size, the largest first.
var units = []struct {
	name  string
	bytes uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// size is a count of bytes, written with a unit.
var size = codec[uint64]{
	kind: "a size such as 512MiB or 2GiB",
	parse: func(r raw) (uint64, error) {
		s, err := one(r)
		if err != nil {
			return 0, err
		}
		return parseSize(s)
	},
	format: func(n uint64) raw { return raw{formatSize(n)} },
}

func parseSize(s string) (uint64, error) {
	factor := uint64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			s, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, errors.New("not a whole number with one of the units B, KiB, MiB, GiB, TiB")
	}
	if n > math.MaxInt64/factor {
		return 0, errors.New("too large")
	}
	return n * factor, nil
}

func formatSize(n uint64) string {
	for _, u := range units {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return "0"
}

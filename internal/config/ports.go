package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxPorts bounds the listeners that a shim holds for a sleeping workload.
const maxPorts = 128

// ports is a set of TCP ports, sorted; nil for auto, empty for none.
var ports = codec[[]uint16]{
	kind: fmt.Sprintf("auto, none, or up to %d ports and ranges such as 80, 8080-8082", maxPorts),
	parse: func(r raw) ([]uint16, error) {
		var words []string
		for _, item := range r {
			words = append(words, strings.Split(item, ",")...)
		}
		return parsePorts(words)
	},
	format: func(list []uint16) raw {
		if list == nil {
			return raw{"auto"}
		}
		if len(list) == 0 {
			return raw{"none"}
		}
		out := make(raw, 0, len(list))
		for _, p := range list {
			out = append(out, strconv.Itoa(int(p)))
		}
		return out
	},
}

func parsePorts(words []string) ([]uint16, error) {
	out := []uint16{}
	for _, w := range words {
		w = strings.TrimSpace(w)
		if w == "auto" || w == "none" {
			if len(words) > 1 {
				return nil, fmt.Errorf("%s stands alone or not at all", w)
			}
			if w == "auto" {
				return nil, nil
			}
			return out, nil
		}
		low, high, err := portRange(w)
		if err != nil {
			return nil, err
		}
		if int(high)-int(low) >= maxPorts {
			return nil, fmt.Errorf("more than %d ports", maxPorts)
		}
		for p := int(low); p <= int(high); p++ {
			out = append(out, uint16(p))
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxPorts {
		return nil, fmt.Errorf("more than %d ports", maxPorts)
	}
	return out, nil
}

func portRange(s string) (low, high uint16, err error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	if low, err = port(first); err != nil {
		return 0, 0, err
	}
	if high, err = port(last); err != nil {
		return 0, 0, err
	}
	if low > high {
		return 0, 0, fmt.Errorf("the range %s runs backwards", s)
	}
	return low, high, nil
}

func port(s string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no port", s)
	}
	if n < 1 || n > 65535 {
		return 0, errors.New("port " + s + " is outside 1 to 65535")
	}
	return uint16(n), nil
}

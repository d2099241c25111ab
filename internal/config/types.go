package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// display joins a value for people.
func display(r raw) string { return strings.Join(r, ", ") }

// text is any non-empty text that passes check, which may be nil.
func text(kind string, check func(string) error) codec[string] {
	return codec[string]{
		kind: kind,
		parse: func(r raw) (string, error) {
			s, err := one(r)
			if err != nil || check == nil {
				return s, err
			}
			return s, check(s)
		},
		format: func(s string) raw { return raw{s} },
	}
}

// maxDir leaves room for the names of the sockets below a directory: a socket's path has 107 bytes.
const maxDir = 80

func directory(s string) error {
	switch {
	case !filepath.IsAbs(s):
		return errors.New("not an absolute path")
	case len(s) > maxDir:
		return fmt.Errorf("longer than %d bytes, which leaves no room for the sockets' names", maxDir)
	}
	return nil
}

func program(s string) error {
	if s == "" || (strings.Contains(s, "/") && !filepath.IsAbs(s)) {
		return errors.New("neither a name nor an absolute path")
	}
	return nil
}

// sidecar accepts a path to a program with the one name that runsc looks for.
func sidecar(s string) error {
	if filepath.Base(s) != sidecarName || filepath.Clean(s) != s || strings.HasPrefix(s, "..") || !strings.Contains(s, "/") {
		return fmt.Errorf("not a path that ends in /%s, the name that runsc looks for", sidecarName)
	}
	return nil
}

const sidecarName = "checkpointgofer"

// below accepts a directory's path, absolute or below the program's.
func below(s string) error {
	if s == "" || filepath.Clean(s) != s || strings.HasPrefix(s, "..") {
		return errors.New("neither an absolute path nor one below the shim's directory")
	}
	return nil
}

// features are names of the CPU's, sorted; nil for auto.
var features = codec[[]string]{
	kind: "auto, or a list of features such as sse4_2, avx2",
	parse: func(r raw) ([]string, error) {
		var list []string
		for _, item := range r {
			for name := range strings.SplitSeq(item, ",") {
				if name = strings.TrimSpace(name); name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" {
					return nil, fmt.Errorf("%q is no name of a feature", name)
				}
				list = append(list, name)
			}
		}
		if slices.Contains(list, "auto") {
			if len(list) > 1 {
				return nil, errors.New("auto stands alone or not at all")
			}
			return nil, nil
		}
		if len(list) == 0 {
			return nil, errors.New("without any feature nothing would run")
		}
		slices.Sort(list)
		return slices.Compact(list), nil
	},
	format: func(list []string) raw {
		if list == nil {
			return raw{"auto"}
		}
		return slices.Clone(raw(list))
	},
}

// listenAddress accepts host:port, and "" for none.
func listenAddress(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is no port", port)
	}
	return nil
}

// choice is one of the given names.
func choice[T ~string](names ...T) codec[T] {
	var all []string
	for _, n := range names {
		all = append(all, string(n))
	}
	return codec[T]{
		kind: strings.Join(all, ", "),
		parse: func(r raw) (T, error) {
			s, err := one(r)
			if err == nil && !slices.Contains(all, s) {
				err = errors.New("not one of the names allowed")
			}
			return T(s), err
		},
		format: func(v T) raw { return raw{string(v)} },
	}
}

var boolean = codec[bool]{
	kind: "true, false",
	parse: func(r raw) (bool, error) {
		s, err := one(r)
		if err == nil && s != "true" && s != "false" {
			err = errors.New("neither true nor false")
		}
		return s == "true", err
	},
	format: func(b bool) raw { return raw{strconv.FormatBool(b)} },
}

// number is a whole number in [low, high].
func number(low, high int, unit string) codec[int] {
	return codec[int]{
		kind: fmt.Sprintf("a number from %d to %d%s", low, high, unit),
		parse: func(r raw) (int, error) {
			s, err := one(r)
			if err != nil {
				return 0, err
			}
			n, err := strconv.Atoi(s)
			if err != nil || n < low || n > high {
				return 0, errors.New("not such a number")
			}
			return n, nil
		},
		format: func(n int) raw { return raw{strconv.Itoa(n)} },
	}
}

var logLevel = codec[slog.Level]{
	kind: "debug, info, warn, error",
	parse: func(r raw) (slog.Level, error) {
		var l slog.Level
		s, err := one(r)
		if err == nil && !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
			return l, errors.New("not one of the names allowed")
		}
		if err == nil {
			err = l.UnmarshalText([]byte(s))
		}
		return l, err
	},
	format: func(l slog.Level) raw { return raw{strings.ToLower(l.String())} },
}

// span is a duration in [low, high]; with zero, 0 is allowed too and means what zero says.
func span(low, high time.Duration, zero string) codec[time.Duration] {
	kind := fmt.Sprintf("a duration from %s to %s", shortDuration(low), shortDuration(high))
	if zero != "" {
		kind += ", or 0: " + zero
	}
	return codec[time.Duration]{
		kind: kind,
		parse: func(r raw) (time.Duration, error) {
			s, err := one(r)
			if err != nil {
				return 0, err
			}
			d, err := time.ParseDuration(s)
			switch {
			case err != nil:
				return 0, errors.New("not a duration with its unit, such as 90s, 5m or 1h30m")
			case d == 0 && zero != "":
			case d < low || d > high:
				return 0, errors.New("out of range")
			}
			return d, nil
		},
		format: func(d time.Duration) raw { return raw{shortDuration(d)} },
	}
}

// shortDuration writes 5m where time.Duration.String writes 5m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

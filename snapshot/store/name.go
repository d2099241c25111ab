package store

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of names, in bytes. S3 takes 1024 with the prefix of the store; file systems take 255 for one element.
const (
	MaxName    = 900
	MaxElement = 200
)

// CheckName says why a name can't be one of an object: it is UTF-8 without control characters, its elements are separated by
// single slashes, none is empty or longer than MaxElement or begins with a dot (those are the store's own), and all is
// 1 to MaxName bytes long. A name must not go on from another one by a slash: a directory can't hold both.
func CheckName(name string) error {
	switch {
	case name == "":
		return badName(name, "it is empty")
	case len(name) > MaxName:
		return badName(name[:MaxElement]+"…", fmt.Sprintf("it is longer than %d bytes", MaxName))
	case !utf8.ValidString(name):
		return badName(name, "it is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return badName(name, "it has a control character in it")
	}
	for element := range strings.SplitSeq(name, "/") {
		switch {
		case element == "":
			return badName(name, "one of its elements is empty")
		case element[0] == '.':
			return badName(name, "one of its elements begins with a dot")
		case len(element) > MaxElement:
			return badName(name, fmt.Sprintf("one of its elements is longer than %d bytes", MaxElement))
		}
	}
	return nil
}

func badName(name, why string) error {
	return fmt.Errorf("%w: %q can't be the name of an object: %s", ErrRefused, name, why)
}

// CheckPut says why a Put can't be one, whatever the store.
func CheckPut(name string, body []byte, cond Condition) error {
	switch {
	case len(body) == 0:
		return fmt.Errorf("%w to write %q: an object is never empty", ErrRefused, name)
	case cond.Absent && cond.Version != "":
		return fmt.Errorf("%w to write %q: only where nothing is, and only over a version, exclude each other", ErrRefused, name)
	}
	return CheckName(name)
}

// CheckRange says why a range can't be read, whatever the object.
func CheckRange(name string, offset, length int64) error {
	if offset < 0 || length <= 0 || offset > offset+length {
		return fmt.Errorf("%w to read %d bytes from %d of %q: that is no range", ErrRefused, length, offset, name)
	}
	return CheckName(name)
}

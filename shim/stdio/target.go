package stdio

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// ErrUnsupportedScheme is for URIs of streams that this shim doesn't serve, and
// for a logger anywhere but on stdout.
var ErrUnsupportedScheme = errors.New("unsupported scheme of a standard stream")

// target is one parsed stream of Config.
type target struct {
	path string
	fifo bool
}

// parse reads a path or URI. A path without a scheme is what the file there is.
func parse(uri string) (target, error) {
	path, scheme := uri, ""
	if strings.Contains(uri, "://") {
		u, err := url.Parse(uri)
		if err != nil {
			return target{}, fmt.Errorf("standard stream: %w", err)
		}
		path, scheme = u.Path, u.Scheme
	}
	switch scheme {
	case "file":
		return target{path: path}, nil
	case "fifo", "":
	default:
		return target{}, fmt.Errorf("%w: %s:// in %q: use a FIFO or file://, or a logger for stdout", ErrUnsupportedScheme, scheme, uri)
	}
	info, err := os.Stat(path)
	if err != nil {
		return target{}, fmt.Errorf("standard stream: %w", err)
	}
	fifo := info.Mode()&os.ModeNamedPipe != 0
	if scheme == "fifo" && !fifo {
		return target{}, fmt.Errorf("standard stream: %s is not a FIFO", path)
	}
	return target{path: path, fifo: fifo}, nil
}

package manager

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
	runtimeopts "github.com/hibernate-runtime/hibernate/shim/options"
)

// answer is what a containerd makes of the program's output.
type answer struct {
	version  int
	address  string
	protocol string
}

// bare takes all of the output for the address, as containerd 1.6 does.
func bare(_ *testing.T, out []byte) answer {
	return answer{2, strings.TrimSpace(string(out)), "ttrpc"}
}

// decoded is JSON, or else a bare address, spaces included. latest is the version of the task service that the containerd
// knows; it refuses a later one.
func decoded(latest int) func(*testing.T, []byte) answer {
	return func(t *testing.T, out []byte) answer {
		t.Helper()
		var r struct {
			Version           int
			Address, Protocol string
		}
		if err := json.Unmarshal(out, &r); err != nil || r.Version < 2 {
			return answer{2, string(out), "ttrpc"}
		}
		if r.Version > latest {
			t.Fatalf("version %d is refused", r.Version)
		}
		return answer{r.Version, r.Address, r.Protocol}
	}
}

// bootstrapped is protobuf, and else what decoded makes of it.
func bootstrapped(t *testing.T, out []byte) answer {
	t.Helper()
	var r bootstrap.BootstrapResult
	if err := proto.Unmarshal(out, &r); err != nil {
		return decoded(3)(t, bytes.TrimSpace(out))
	}
	return answer{int(r.Version), r.Address, r.Protocol}
}

// caller is a version of containerd as `start` sees it.
type caller struct {
	name      string
	old       bool // says little in the environment
	bootstrap bool // BootstrapParams on stdin, instead of the options or nothing
	parse     func(*testing.T, []byte) answer
	version   int // of the task service that it is to use
}

var callers = []caller{
	{"1.6", true, false, bare, 2},
	{"1.7", false, false, decoded(2), 2},
	{"2.0", false, false, decoded(3), 2},
	{"2.1", false, false, decoded(3), 2},
	{"2.2", false, false, decoded(3), 2},
	{"2.3", false, true, bootstrapped, 3},
	{"2.4", false, true, bootstrapped, 3},
	// What a wrong guess of the caller's version would come to.
	{"1.7 taken for 1.6", true, false, decoded(2), 2},
	{"2.2 taken for 1.6", true, false, decoded(3), 2},
	{"2.4 reads an old answer", false, false, bootstrapped, 2},
	{"2.4 reads a bare address", true, false, bootstrapped, 2},
}

// stdin is what the caller writes for options, which may be nil.
func (c caller) stdin(t *testing.T, b *bundle, opts proto.Message) []byte {
	t.Helper()
	switch {
	case c.bootstrap && opts != nil:
		return params(t, b, b.id, opts)
	case c.bootstrap:
		return params(t, b, b.id)
	case opts != nil:
		return packed(t, opts)
	}
	return nil
}

// Every version of containerd, with options of ours, of another runtime and without, gets a daemon that serves it.
func TestStartProtocols(t *testing.T) {
	for _, c := range callers {
		for _, o := range []struct {
			name string
			opts proto.Message
			kept runtimeopts.Runtime
		}{
			{"no options", nil, runtimeopts.Runtime{}},
			{"a path", &runtimeoptions.Options{ConfigPath: "/etc/x.toml"}, runtimeopts.Runtime{ConfigPath: "/etc/x.toml"}},
			{"a body", &runtimeoptions.Options{ConfigBody: []byte("mode = \"off\"")}, runtimeopts.Runtime{ConfigBody: "mode = \"off\""}},
			{"runc's", &options.Options{BinaryName: "runc"}, runtimeopts.Runtime{}},
		} {
			t.Run(c.name+"/"+o.name, func(t *testing.T) {
				if !c.bootstrap { // the sockets are in containerd's own directory
					testroot.Require(t)
				}
				b := newBundle(t, nil)
				b.old = c.old
				a := c.parse(t, b.start(c.stdin(t, b, o.opts)))
				if a.version != c.version || a.protocol != "ttrpc" {
					t.Errorf("answer %+v, want version %d and ttrpc", a, c.version)
				}
				if got, err := runtimeopts.Load(b.dir); err != nil || got != o.kept {
					t.Errorf("options kept: %+v, %v; want %+v", got, err, o.kept)
				}
				checkDaemon(t, b, a)
			})
		}
	}
}

// Several extensions: the one that is ours counts.
func TestBootstrapWithSeveralExtensions(t *testing.T) {
	b := newBundle(t, nil)
	stdin := params(t, b, b.id, &options.Options{BinaryName: "runc"}, &runtimeoptions.Options{ConfigPath: "/etc/x.toml"})
	a := bootstrapped(t, b.start(stdin))
	if got, err := runtimeopts.Load(b.dir); err != nil || got.ConfigPath != "/etc/x.toml" || a.version != 3 {
		t.Errorf("options kept: %+v, %v; answer %+v", got, err, a)
	}
	checkDaemon(t, b, a)
}

// Parameters that name another container are none: options can happen to look like them.
func TestBootstrapOfAnotherContainer(t *testing.T) {
	testroot.Require(t)
	b := newBundle(t, nil)
	a := bootstrapped(t, b.start(params(t, b, "other")))
	if a.version != 2 {
		t.Errorf("answer %+v", a)
	}
	checkDaemon(t, b, a)
}

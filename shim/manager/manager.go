// Package manager is the shim program as containerd calls it.
//
//	-info, -v       what this runtime is
//	… start         make the shim's *daemon*, or find the one of the container's *group*; print its *address*
//	… delete        clean up after a daemon that is gone, from the *bundle* alone
//	… (no action)   be the daemon: serve ttrpc on the socket inherited as descriptor 3
//
// containerd's own library runs the daemon and `delete`. `start` is ours, because that library's refuses a containerd
// before 2.3: one that says on stdin who is to be started (*bootstrap*) gets a protobuf answer and version 3 of the task
// service, an older one JSON and version 2, and 1.6 the bare address. Whatever `start` writes to its standard error becomes part of the answer, so
// it writes there only when it fails.
package manager

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containerd/containerd/v2/pkg/shim"
)

// Cleanup removes what a workload left outside its bundle, with nothing to go by but the bundle, and tells how its
// process ended. It is called in a new process, may be called again, and succeeds when there is nothing to do. The
// status is 128 and the signal's number for a process that a signal ended.
type Cleanup func(ctx context.Context, bundle string) (exitStatus int, exitedAt time.Time, pid int, err error)

// Options describes the program.
type Options struct {
	Runtime  string // io.containerd.hibernate.v1
	Version  string
	Revision string
	Cleanup  Cleanup
}

// Main does what the program's arguments say and returns its exit code. As the daemon, it returns when that shuts down.
func Main(opts Options) int {
	inv, err := parse(os.Args[1:])
	if err != nil {
		return fail(opts, err)
	}
	inv.maxVersion = os.Getenv(maxVersionEnv)
	switch {
	case inv.version:
		printVersion(os.Stdout, opts)
	case inv.action == "start":
		if err := runStart(context.Background(), inv, os.Stdin, os.Stdout); err != nil {
			return fail(opts, fmt.Errorf("start %s: %w", inv.id, err))
		}
	case inv.info, inv.action == "delete":
		runLibrary(opts)
	case inv.action == "":
		if err := openLog(inv.debug); err != nil {
			return fail(opts, err)
		}
		runLibrary(opts)
	default:
		return fail(opts, fmt.Errorf("unknown action %q (start, delete, or none)", inv.action))
	}
	return 0
}

func fail(opts Options, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", opts.Runtime, err)
	return 1
}

// runLibrary hands over to containerd's library, which parses the arguments again and ends the process on errors.
func runLibrary(opts Options) {
	shim.RunShim(context.Background(), runner{opts}, func(c *shim.Config) { c.NoSetupLogger = true })
}

func printVersion(w io.Writer, opts Options) {
	fmt.Fprintf(w, "%s:\n  Version:    %s\n  Revision:   %s\n  Go version: %s\n",
		filepath.Base(os.Args[0]), opts.Version, opts.Revision, runtime.Version())
}

// invocation is the program's arguments.
type invocation struct {
	namespace, id, address, bundle string
	debug, version, info           bool
	action                         string
	maxVersion                     string // of the environment
}

// parse reads the arguments that containerd gives; those that only containerd's library needs are passed over.
func parse(args []string) (invocation, error) {
	var inv invocation
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&inv.namespace, "namespace", "", "")
	set.StringVar(&inv.id, "id", "", "")
	set.StringVar(&inv.address, "address", "", "")
	set.StringVar(&inv.bundle, "bundle", "", "")
	set.BoolVar(&inv.debug, "debug", false, "")
	set.BoolVar(&inv.version, "v", false, "")
	set.BoolVar(&inv.version, "version", false, "")
	set.BoolVar(&inv.info, "info", false, "")
	for _, other := range []string{"publish-binary", "socket", "debug-socket"} {
		set.String(other, "", "")
	}
	if err := set.Parse(args); err != nil {
		return inv, fmt.Errorf("arguments: %w", err)
	}
	inv.action = set.Arg(0)
	if !inv.version && !inv.info && (inv.namespace == "" || inv.id == "") {
		return inv, errors.New("arguments: -namespace and -id are required; containerd starts this program, not a person")
	}
	return inv, nil
}

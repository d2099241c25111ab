// Package gofer serves the files of a snapshot to a sandbox that is being restored, so that the sandbox runs before its
// memory is loaded. `runsc restore` starts it, in the sandbox's control group, when the image directory that it is given holds
// a gcs_opts.json; arguments and protocol are gVisor's, the content of that file is ours (options.go). It ends with the load,
// and with the sandbox.
package gofer

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

// Main is the program. place is where the snapshot is, by its directory.
func Main(place func(directory string) pages.Source) {
	if len(os.Args) == 2 && strings.TrimLeft(os.Args[1], "-") == "version" {
		fmt.Println(version())
		return
	}
	if err := run(os.Args[1:], place); err != nil {
		fmt.Fprintln(os.Stderr, "checkpointgofer:", err)
		os.Exit(1)
	}
}

// version is that of the gVisor that it was built with, in the form that runsc is stamped with.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if d.Path == "gvisor.dev/gvisor" {
			return "go-" + strings.TrimPrefix(d.Version, "v0.0.0-")
		}
	}
	return "unknown"
}

// leastParallel reads hide from the one processor that there may be how long the other waits for the disk.
const leastParallel = 2

// collectAt keeps the heap near the buffers' size: it is charged to the workload.
const collectAt = 25

func run(args []string, place func(string) pages.Source) error {
	debug.SetGCPercent(collectAt)
	if i := slices.Index(args, "checkpointgofer"); i >= 0 { // runsc's own flags stand before the command's name
		args = args[i+1:]
	}
	flags := flag.NewFlagSet("checkpointgofer", flag.ContinueOnError)
	socket := flags.Int("sock-fd", 3, "socket to the sandbox")
	content := flags.Int("gcs-opts-fd", 4, "the content of gcs_opts.json")
	reads := flags.Bool("allow-checkpoint-reads", false, "serve a checkpoint")
	for _, other := range []string{"allow-checkpoint-writes", "allow-fscheckpoint-reads", "allow-fscheckpoint-writes"} {
		flags.Bool(other, false, "not supported")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*reads {
		return errors.New("only a checkpoint to be read is served")
	}
	o, err := readOptions(os.NewFile(uintptr(*content), "gcs_opts.json"))
	if err != nil {
		return err
	}
	o.Parallel = min(o.Parallel, max(leastParallel, runtime.GOMAXPROCS(0)))
	return serve(o, place, *socket)
}

// serve answers the sandbox until it has all, or is gone.
func serve(o options, place func(string) pages.Source, socket int) error {
	s, err := openStatus(o.Status)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	source := o.source(place, s.mended)
	s.tell(event{Event: "started", Pid: os.Getpid()})
	impl := &server{options: o, status: s, source: source, store: pages.NewStore(o.ChunkSize, o.Parallel+spare)}
	files, err := stateipc.NewAsyncFileServer(impl)
	if err != nil {
		return err
	}
	conn, err := unet.NewSocket(socket)
	if err != nil {
		return err
	}
	rpc := urpc.NewServer()
	rpc.Register(files)
	_ = rpc.Handle(conn) // until the sandbox closes it
	impl.over.Store(true)
	s.tell(event{Event: "left"})
	rpc.Stop(0)
	return nil
}

// spare buffers hold neighbours' chunks: reads needn't begin where chunks do.
const spare = 2

// keptBytes bounds what is kept of chunks that were read ahead: it is charged to the workload until they are asked for.
const keptBytes = 64 << 20

// server implements stateipc.AsyncFileServerImpl.
type server struct {
	options
	status *status
	source pages.Source
	store  *pages.Store
	moved  atomic.Int64
	over   atomic.Bool // the sandbox is gone
}

// Destroy implements stateipc.AsyncFileServerImpl.
func (*server) Destroy() {}

// OpenWrite implements stateipc.AsyncFileServerImpl.
func (*server) OpenWrite(path string) (stateio.AsyncWriter, error) {
	return nil, fmt.Errorf("%s: a snapshot is only read", path)
}

// OpenRead implements stateipc.AsyncFileServerImpl. The sandbox opens checkpoint.img, pages_meta.img and pages.img.
func (s *server) OpenRead(path string) (stateio.AsyncReader, error) {
	r, err := s.open(path)
	if err != nil {
		s.status.fail(path, err)
		return nil, err
	}
	return r, nil
}

func (s *server) open(path string) (*reader, error) {
	file, err := s.file(path)
	if err != nil {
		return nil, err
	}
	blob, err := s.source.Open(file.Name)
	if err != nil {
		return nil, err
	}
	open, err := s.store.Open(file, blob)
	if err != nil {
		return nil, errors.Join(err, blob.Close())
	}
	r := &reader{file: open, name: file.Name, chunk: s.ChunkSize, size: file.Size, parallel: s.Parallel, status: s.status, moved: &s.moved}
	if file.Name == checkpointfiles.PagesFileName {
		r.record = &record{}
		r.loaded = func() { s.loaded(r.record) }
		if e, ok := blob.(pages.Expecter); ok {
			e.Expect(s.first(file))
		}
		r.ahead = s.ahead(file)
	}
	return newReader(r), nil
}

// ahead are the chunks to be read before they are asked for: the first of those that the last wake asked for first, as many as
// keptBytes and a thirty-second of the file have room for. None of a file that is far away, where a reader would wait too long.
func (s *server) ahead(file pages.File) []int {
	if s.Remote != nil && slices.Contains(s.Remote.Only, file.Name) {
		return nil
	}
	all := s.first(file)
	return all[:min(int64(len(all)), min(keptBytes, file.Size/32)/s.ChunkSize)]
}

// loaded tells the shim that all is in the sandbox, unless that is only gone, and before that what was asked for out of turn.
func (s *server) loaded(asked *record) {
	if s.over.Load() {
		return
	}
	if s.Record != "" {
		if err := asked.write(s.Record); err != nil { // the shim does without
			fmt.Fprintln(os.Stderr, "checkpointgofer: record:", err)
		}
	}
	s.status.tell(event{Event: "loaded", Bytes: s.moved.Load()})
}

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Server is the store's, which can die.
type Server interface {
	Kill()
	Start() error
}

// Field is where runs happen. All fields are required.
type Field struct {
	World  *harness.World
	Server Server
	Store  store.Store // on the same server, for collectors and the look at the end
	Keys   durable.Keyring

	pod     harness.Pod
	running bool // the server
	value   int  // of the workload's counter, as it was last answered
}

const (
	id    = "chaos"
	port  = 8080
	heap  = 8 // MiB of it that nothing makes smaller
	limit = time.Minute
)

// Open makes the workload.
func (f *Field) Open(ctx context.Context) (err error) {
	f.running = true
	if f.pod, err = f.World.NewPod(ctx, id); err != nil {
		return err
	}
	return f.create(ctx)
}

// Close removes it.
func (f *Field) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return errors.Join(f.World.Remove(ctx, id), f.World.RemovePod(ctx, f.pod), f.removeStreams())
}

// removeStreams removes the FIFOs that ctr has made for shims that died: it does so only with a task.
func (f *Field) removeStreams() error {
	dirs, err := filepath.Glob(f.World.Path("/run/containerd/fifo/*"))
	for _, dir := range dirs {
		if found, _ := filepath.Glob(filepath.Join(dir, id+"-std*")); len(found) > 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

// create runs the container, instead of one whose shim has died: containerd takes a moment to clean up after that.
func (f *Field) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error // the deadline's own says nothing
	for {
		err := f.World.Remove(ctx, id)
		if err == nil {
			_, err = f.World.Run(ctx, harness.Container{
				ID: id, Image: "testserver", NetNS: f.pod.Path, Detach: true, Env: []string{fmt.Sprint("TESTSERVER_MIB=", heap)},
			})
		}
		if err == nil {
			return f.listens(ctx)
		}
		select {
		case <-ctx.Done():
			return errors.Join(last, err)
		case <-time.After(50 * time.Millisecond):
			last = err
		}
	}
}

// listens waits until the workload is asleep, or answers: what is put to sleep before it listens is woken by no connection.
func (f *Field) listens(ctx context.Context) error {
	for {
		if f.state(ctx) == "asleep" {
			return nil
		}
		_, err := f.once(ctx, http.MethodGet)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it doesn't listen: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// call asks the workload, which a sleeper wakes for. It is asked again until it answers, for as long as ctx; POST isn't.
func (f *Field) call(ctx context.Context, method string) (int, error) {
	for {
		v, err := f.once(ctx, method)
		if err == nil || method != http.MethodGet || ctx.Err() != nil {
			return v, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (f *Field) once(ctx context.Context, method string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d/counter", f.pod.IP, port), nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: f.World.Dial, DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// state is the workload's, "" when no shim has it.
func (f *Field) state(ctx context.Context) string {
	s, err := f.World.Status(ctx, id)
	if err != nil {
		return ""
	}
	return s.GetState()
}

// killShim kills the workload's shim, if there is one.
func (f *Field) killShim(ctx context.Context) error {
	r, err := f.World.Record(id)
	if err != nil {
		return nil // there is none
	}
	if err := syscall.Kill(r.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// dir is the workload's in the local tier.
func (f *Field) dir() string {
	return snapshot.DirFor(f.World.Path(f.World.DataDir()), f.World.Name, id, "")
}

// sequence is that of the workload's snapshot on the node.
func (f *Field) sequence() (uint64, error) {
	head, err := snapshot.ReadHead(f.dir())
	return head.Sequence, err
}

// forgetLocal takes the snapshot off the node.
func (f *Field) forgetLocal() error {
	n, err := f.sequence()
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(f.dir(), strconv.FormatUint(n, 10)))
}

var uploadedPattern = regexp.MustCompile(`msg=uploaded workload=\S+/` + id + ` name=(\S+) sequence=(\d+)`)

// committed is what the daemon has told of uploads since its log was cut: the highest sequence by lineage.
func (f *Field) committed() (map[string]uint64, error) {
	text, err := os.ReadFile(f.World.Path(f.World.Daemon.LogFile))
	if err != nil {
		return nil, err
	}
	all := make(map[string]uint64)
	for _, m := range uploadedPattern.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[2], 10, 64)
		if err != nil {
			return nil, err
		}
		all[m[1]] = max(all[m[1]], n)
	}
	return all, nil
}

// cutLog forgets what was told of earlier runs.
func (f *Field) cutLog() error { return os.Truncate(f.World.Path(f.World.Daemon.LogFile), 0) }

// tier is the durable tier as another node's collector sees it: it keeps as many generations as the daemon does, and has hardly a grace.
func (f *Field) tier() (*durable.Tier, error) {
	return durable.New(durable.Config{Store: f.Store, Keys: f.Keys, Node: "collector", Grace: time.Nanosecond})
}

// lineage is the random id of the workload's chain of snapshots, which stands at the end of its name in the store.
func (f *Field) lineage() string {
	head, err := snapshot.ReadHead(f.dir())
	if err != nil || head.Lineage == "" {
		return "no lineage"
	}
	return head.Lineage
}

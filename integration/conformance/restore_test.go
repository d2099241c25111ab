package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// A container made from a checkpoint goes on where that was; one that can't is refused, and never starts afresh.
func TestRestore(t *testing.T) {
	n := newNode(t, nil)
	count := []string{"sh", "-c", "i=0; while read line; do i=$((i+1)); echo $i; done"}
	moods(t, func(t *testing.T, m mood) {
		c := n.run(t, m, options{args: count, stdin: true})
		c.nap()
		dir := t.TempDir()
		if _, err := c.task.Checkpoint(c.ctx(), &taskapi.CheckpointTaskRequest{ID: c.id, Path: dir}); err != nil {
			t.Fatalf("checkpoint: %v", err)
		}
		restore := func(t *testing.T, args []string) error {
			r := n.prepare(t, mood{}, options{args: args, stdin: true})
			r.connect(r.startShim())
			request := r.createRequest()
			request.Checkpoint = dir
			response, err := r.task.Create(r.ctx(), request)
			if err != nil {
				return errgrpc.ToNative(err)
			}
			r.pid = response.GetPid()
			_, err = r.task.Start(r.ctx(), &taskapi.StartRequest{ID: r.id})
			return errgrpc.ToNative(err)
		}
		refused := func(t *testing.T, err error, why string) {
			t.Helper()
			if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), why) {
				t.Errorf("%v; want a refusal because of %q", err, why)
			}
		}
		check(t, "as it was", func(t *testing.T) {
			if err := restore(t, count); err != nil {
				t.Error(err)
			}
		})
		check(t, "another program", func(t *testing.T) { refused(t, restore(t, sleeper), "process.args") })
		check(t, "damaged", func(t *testing.T) {
			if err := os.Truncate(filepath.Join(dir, "pages.img"), 4096); err != nil {
				t.Fatal(err)
			}
			refused(t, restore(t, count), "pages.img")
		})
		check(t, "gone", func(t *testing.T) {
			if err := os.Remove(filepath.Join(dir, "pages.img")); err != nil {
				t.Fatal(err)
			}
			refused(t, restore(t, count), "not there")
		})
	})
}

package checkpointverbs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// All verbs share a world and a pod, one after the other.
func TestCheckpointVerbs(t *testing.T) {
	w := harness.New(t, harness.Options{Settings: map[string]string{"mode": `"manual"`}})
	pod, err := w.NewPod(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.RemovePod(context.Background(), pod); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name string
		test func(*node)
	}{
		{"task-checkpoint", testTaskCheckpoint},
		{"live-restore", testLiveRestore},
		{"image-path", testImagePath},
		{"exit", testExit},
		{"refused", testRefused},
		{"event", testEvent},
		{"pause-of-a-sleeper", testPauseOfSleeper},
		{"another-runsc", testAnotherRunsc},
		{"files-of-the-sandbox", testFilesOfTheSandbox},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(&node{w, t, pod, name(t)}) })
	}
}

// name is a container's, one a test: ctr names checkpoints by container and second.
func name(t *testing.T) string {
	return strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestCheckpointVerbs/"), "/", "-")
}

// moods runs a test on a container that is awake, and on one that sleeps. as is its state.
func (n *node) moods(test func(n *node, as string)) {
	for _, as := range []string{"awake", "asleep"} {
		n.t.Run(as, func(t *testing.T) {
			n := &node{n.World, t, n.pod, name(t)}
			n.serve()
			n.counts("1")
			n.counts("2")
			if as == "asleep" {
				n.sleep(n.id)
			}
			test(n, as)
		})
	}
}

// A checkpoint of a task leaves it as it was: awake and running, or asleep.
func testTaskCheckpoint(n *node) {
	n.moods(func(n *node, as string) {
		n.must("tasks", "checkpoint", n.id)
		s := n.is(n.id, as, "RUNNING")
		if s.GetWakes() != 0 {
			n.t.Errorf("the checkpoint woke it: %v", s.GetLastWake())
		}
		n.counts("3")
		n.sleep(n.id)
		n.counts("4")
	})
}

// What was checkpointed goes on where it was, under the name of another container, and sleeps and wakes as any other.
func testLiveRestore(n *node) {
	n.moods(func(n *node, as string) {
		ref := "live-" + as
		n.must("containers", "checkpoint", "--task", "--image", n.id, ref)
		defer n.must("images", "delete", ref)
		n.is(n.id, as, "RUNNING")
		n.counts("3")
		n.remove(n.id)
		n.t.Cleanup(func() { n.remove("b") })
		n.must("containers", "restore", "--live", "b", ref)
		if s := n.is("b", "awake", "RUNNING"); s.GetLastWake().GetOutcome() != "restored" {
			n.t.Errorf("start: %v", s.GetLastWake())
		}
		n.answers()
		n.counts("3")
		n.sleep("b")
		n.counts("4")
	})
}

// With a path of its own, which needn't be there yet, a checkpoint is flat files, and overwrites nothing.
func testImagePath(n *node) {
	n.moods(func(n *node, as string) {
		dir := filepath.Join(n.t.TempDir(), "not", "there")
		n.must("tasks", "checkpoint", "--image-path", dir, n.id)
		var names []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if want := []string{"checkpoint.img", "manifest.json", "pages.img", "pages_meta.img"}; !slices.Equal(names, want) {
			n.t.Errorf("files %v, want %v", names, want)
		}
		before, err := os.Stat(filepath.Join(dir, "pages.img"))
		if err != nil {
			n.t.Fatal(err)
		}
		if _, complaint := n.try("tasks", "checkpoint", "--image-path", dir, n.id); !strings.Contains(complaint, "exist") {
			n.t.Errorf("a second one in the same place: %q", complaint)
		}
		after, err := os.Stat(filepath.Join(dir, "pages.img"))
		if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			n.t.Errorf("the first one was touched: %v", err)
		}
		n.is(n.id, as, "RUNNING")
		n.counts("3")
	})
}

// With --exit the container ends with its checkpoint.
func testExit(n *node) {
	n.moods(func(n *node, as string) {
		n.must("tasks", "checkpoint", "--exit", n.id)
		if err := n.WaitTask(n.context(), n.id, "STOPPED"); err != nil {
			n.t.Error(err)
		}
	})
}

// What could not be restored is not checkpointed, and the reason told.
func testRefused(n *node) {
	n.serve()
	exec := n.Command(n.context(), "ctr", "--address", n.Address(), "--namespace", n.Name, "tasks", "exec", "--exec-id", "e", n.id,
		"sh", "-c", "echo here; sleep 1000")
	out, err := exec.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := exec.Start(); err != nil {
		n.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		n.t.Fatal(line, err)
	}
	dir := n.t.TempDir()
	_, complaint := n.try("tasks", "checkpoint", "--image-path", dir, n.id)
	if !strings.Contains(complaint, "can't be restored from it: processes started by exec run in it (1)") || !strings.Contains(complaint, "[exec]") {
		n.t.Errorf("with a live exec: %q", complaint)
	}
	n.try("tasks", "checkpoint", "--image-path", filepath.Join(dir, "new"), n.id)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		n.t.Errorf("left %v, %v", entries, err)
	}
	n.is(n.id, "awake", "RUNNING")
	n.counts("1")
	n.remove(n.id)
	_ = exec.Wait() // killed with its container
}

func testEvent(n *node) {
	events := n.Command(n.context(), "ctr", "--address", n.Address(), "--namespace", n.Name, "events")
	seen := &strings.Builder{}
	out, err := events.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := events.Start(); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), "/tasks/delete") {
			k, err := out.Read(buf)
			seen.Write(buf[:k])
			if err != nil {
				return
			}
		}
	}()
	n.serve()
	n.must("tasks", "checkpoint", n.id)
	n.remove(n.id)
	<-done
	_ = events.Process.Kill()
	_ = events.Wait()
	text := seen.String()
	at := -1
	for _, topic := range []string{"/tasks/start", "/tasks/paused", "/tasks/checkpointed", "/tasks/resumed", "/tasks/exit"} {
		next := strings.Index(text, topic)
		if next < at {
			n.t.Fatalf("%s is not in its place in %s", topic, text)
		}
		at = next
	}
}

// A sleeper that a user pauses is paused asleep: who comes waits until it is resumed.
func testPauseOfSleeper(n *node) {
	n.serve()
	n.counts("1")
	n.sleep(n.id)
	n.must("tasks", "pause", n.id)
	n.is(n.id, "asleep", "PAUSED")
	if _, err := n.Wake(n.context(), n.id); err == nil || !strings.Contains(err.Error(), "resume it first") {
		n.t.Errorf("a wake: %v", err)
	}
	answer := make(chan string)
	go func() {
		got, err := n.ask("/counter")
		answer <- fmt.Sprint(got, err)
	}()
	select {
	case got := <-answer:
		n.t.Fatalf("a paused container answered %s", got)
	case <-time.After(500 * time.Millisecond):
	}
	n.is(n.id, "asleep", "PAUSED")
	n.must("tasks", "resume", n.id)
	if got := <-answer; got != "2<nil>" {
		n.t.Errorf("resumed it answered %s", got)
	}
	n.is(n.id, "awake", "RUNNING")
}

package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

func TestStreams(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "round trip", func(t *testing.T) { roundTrip(t, n, m) })
		check(t, "input wakes", func(t *testing.T) { inputWakes(t, n, m) })
		check(t, "20 MiB", func(t *testing.T) { bulk(t, n, m) })
		check(t, "input detached and attached again", func(t *testing.T) { reattach(t, n, m) })
		check(t, "output, then exit", func(t *testing.T) { outputThenExit(t, n, m) })
		check(t, "to a file", func(t *testing.T) { toFile(t, n, m) })
	})
	check(t, "terminal", func(t *testing.T) { terminal(t, n, false) })
	check(t, "terminal by the request alone", func(t *testing.T) { terminal(t, n, true) })
	check(t, "terminal by the specification alone", func(t *testing.T) { noTerminal(t, n) })
	check(t, "read late", func(t *testing.T) { readLate(t, n) })
}

func (c *container) closeIO() {
	c.t.Helper()
	if _, err := c.task.CloseIO(c.ctx(), &taskapi.CloseIORequest{ID: c.id, Stdin: true}); err != nil {
		c.t.Fatalf("CloseIO: %v", err)
	}
}

func roundTrip(t *testing.T, n *node, m mood) {
	c := n.run(t, m, options{stdin: true, args: []string{"sh", "-c", "while read l; do echo $l; echo $l >&2; done; exit 7"}})
	want := ""
	for i := range 3 {
		c.nap()
		line := fmt.Sprintf("line %d\n", i)
		want += line
		c.say(line) // what is said to a sleeper is kept for it, and wakes it
		c.rise()
		c.hear(want)
	}
	c.nap()
	c.closeIO()
	c.rise()
	c.wantExit("", 7)
	c.delete("")
	<-c.out.done
	<-c.errs.done
	if c.out.text() != want || c.errs.text() != want {
		t.Fatalf("output %q, errors %q; want %q of both", c.out.text(), c.errs.text(), want)
	}
}

// inputWakes has nothing but input and its end wake a sleeper.
func inputWakes(t *testing.T, n *node, m mood) {
	c := n.run(t, m, options{stdin: true, args: []string{"sh", "-c", "while read l; do echo $l; done; exit 9"}})
	want := ""
	for i := range 2 {
		c.nap()
		line := fmt.Sprintf("word %d\n", i)
		want += line
		c.say(line)
		c.hear(want)
	}
	c.nap()
	c.closeIO()
	c.wantExit("", 9)
}

// bulk sends 20 MiB through, with a nap in the middle.
func bulk(t *testing.T, n *node, m mood) {
	const half = 10 << 20
	c := n.run(t, m, options{stdin: true, args: []string{"cat"}})
	data := make([]byte, 2*half)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	for i := range 2 {
		if _, err := c.stdin.Write(data[i*half : (i+1)*half]); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a half", func() bool { return c.out.size() == (i+1)*half })
		c.nap()
		c.rise()
	}
	c.closeIO()
	c.wantExit("", 0)
	c.delete("")
	<-c.out.done
	if sha256.Sum256([]byte(c.out.text())) != sha256.Sum256(data) {
		t.Fatalf("what came back differs, or is not all: %d bytes", c.out.size())
	}
}

// reattach closes the client's end and opens it again: only CloseIO ends the input.
func reattach(t *testing.T, n *node, m mood) {
	c := n.run(t, m, options{stdin: true, args: []string{"cat"}})
	want := ""
	for i := range 3 {
		line := fmt.Sprintf("client %d\n", i)
		want += line
		c.say(line)
		c.hear(want)
		if err := c.stdin.Close(); err != nil {
			t.Fatal(err)
		}
		c.nap()
		c.rise()
		c.stdin = c.openInput("stdin")
	}
	c.say("last\n")
	c.hear(want + "last\n")
	c.closeIO()
	c.wantExit("", 0)
}

// outputThenExit deletes as soon as the exit is told; nothing of the output may be missing.
func outputThenExit(t *testing.T, n *node, m mood) {
	const size = 4 << 20
	c := n.run(t, m, options{stdin: true, args: []string{"sh", "-c", fmt.Sprintf("read l; yes | head -c %d; exit 3", size)}})
	c.nap()
	c.rise()
	c.say("go\n")
	c.wantExit("", 3)
	c.delete("")
	<-c.out.done
	if got := c.out.size(); got != size {
		t.Fatalf("%d of %d bytes came out", got, size)
	}
	quick := n.run(t, m, options{args: []string{"echo", "quick"}})
	quick.wantExit("", 0)
	quick.delete("")
	quick.hear("quick\n")
}

func toFile(t *testing.T, n *node, m mood) {
	file := filepath.Join(n.Dir, newID()+".log")
	c := n.run(t, m, options{stdin: true, stdout: "file://" + file, args: []string{"cat"}})
	c.say("one\n")
	eventually(t, "the first line", func() bool { return read(file) == "one\n" })
	c.nap()
	c.rise()
	c.say("two\n")
	c.closeIO()
	c.wantExit("", 0)
	if got := read(file); got != "one\ntwo\n" {
		t.Fatalf("the file holds %q", got)
	}
}

func read(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}

func terminal(t *testing.T, n *node, misled bool) {
	c := n.run(t, mood{}, options{stdin: true, terminal: true, misled: misled, args: []string{"sh", "-c", "read l; stty size; tty; exit 4"}})
	if _, err := c.task.ResizePty(c.ctx(), &taskapi.ResizePtyRequest{ID: c.id, Width: 91, Height: 37}); err != nil {
		t.Fatalf("ResizePty: %v", err)
	}
	c.say("go\n")
	c.wantExit("", 4)
	eventually(t, "the terminal's size", func() bool { return strings.Contains(c.out.text(), "37 91") })
}

func noTerminal(t *testing.T, n *node) {
	c := n.run(t, mood{}, options{misled: true, args: []string{"sh", "-c", "test -t 1 || echo not a terminal; echo error >&2; exit 4"}})
	c.wantExit("", 4)
	eventually(t, "both outputs", func() bool { return c.out.text() == "not a terminal\n" && c.errs.text() == "error\n" })
}

// readLate reads nothing before the container is gone: what a pipe holds is kept until Delete.
func readLate(t *testing.T, n *node) {
	want := strings.Repeat("kept\n", 1000)
	c := n.run(t, mood{}, options{unread: true, args: []string{"sh", "-c", "yes kept | head -n 1000"}})
	c.wantExit("", 0)
	out := collect(t, c.stream("stdout"))
	t.Cleanup(out.close)
	eventually(t, "what was written", func() bool { return bytes.Equal([]byte(out.text()), []byte(want)) })
	c.delete("")
	c.shutdown()
}

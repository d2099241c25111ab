// Package admission has real containers wait for their turn to wake, be refused, and be held while their shim hangs.
package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// servers starts so many servers, and puts them to sleep.
func servers(t *testing.T, w *harness.World, n int) []*known.Server {
	t.Helper()
	ctx := bounded(t)
	if err := w.Import(ctx, "testserver"); err != nil {
		t.Fatal(err)
	}
	all := make([]*known.Server, n)
	for i := range all {
		id := fmt.Sprint("server-", i)
		pod, err := w.NewPod(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		s := known.New(t, w, id, pod)
		all[i] = s
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s.HangUp()
			if err := errors.Join(w.Remove(ctx, id), w.RemovePod(ctx, pod)); err != nil {
				t.Error(err)
			}
		})
		s.Start(harness.Container{}, 4)
		s.HangUp()
		s.Sleep()
	}
	eventually(t, "the daemon knows that they sleep", func() bool { return strings.Count(daemonLog(t, w), "state=asleep") == n })
	return all
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// echo sends a line on a connection, and wants it back.
func echo(c net.Conn, line string) error {
	if err := c.SetDeadline(time.Now().Add(known.Patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	answer := make([]byte, len(line)+1)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != line+"\n" {
		return fmt.Errorf("%q was answered by %q: %w", line, answer, err)
	}
	return nil
}

func daemonLog(t *testing.T, w *harness.World) string {
	t.Helper()
	text, err := os.ReadFile(w.Daemon.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > known.Patience {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// TestTurns: four sleepers, of which one may wake at a time, and a burst to each at once. All clients are answered, and by what
// the shims tell of their wakes never two ran at the same time. What the wake proxy passed on afterwards is seen by the shims'
// counters, so that nobody takes them for broken.
func TestTurns(t *testing.T) {
	const burst = 5
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{
		"mode": `"manual"`, "max-wakes": "1", "idle-timeout": `"400ms"`, "poll-interval": `"100ms"`,
	}})
	all := servers(t, w, 4)
	var clients sync.WaitGroup
	begin := make(chan struct{})
	for i, s := range all {
		for j := range burst {
			clients.Go(func() {
				<-begin
				if err := visit(w, s, fmt.Sprintf("client %d of %d", j, i)); err != nil {
					t.Errorf("client %d of server %d: %v", j, i, err)
				}
			})
		}
	}
	close(begin)
	clients.Wait()
	wakes := wakesOf(t, w, all)
	for i := range wakes[1:] {
		before, next := wakes[i], wakes[i+1]
		if overlap := before.end.Sub(next.begin); overlap > time.Millisecond { // what the begin is rounded to
			t.Errorf("the wakes of %s and %s overlap by %v", before.id, next.id, overlap)
		}
	}
	if log := daemonLog(t, w); strings.Contains(log, "activity can't be measured") {
		t.Error("the daemon takes a shim's counters for broken")
	}
	for _, s := range all {
		s.GoesOn()
	}
}

// visit talks for some samples of the idle policy over one connection.
func visit(w *harness.World, s *known.Server, line string) error {
	ctx, cancel := context.WithTimeout(context.Background(), known.Patience)
	defer cancel()
	c, err := w.Dial(ctx, "tcp", s.Address(7000))
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range 8 {
		if err := echo(c, fmt.Sprint(line, " says ", i)); err != nil {
			return err
		}
		time.Sleep(60 * time.Millisecond) // a client that takes its time
	}
	return nil
}

type wake struct {
	id         string
	begin, end time.Time
}

// wakesOf are the last wakes of all, in their order.
func wakesOf(t *testing.T, w *harness.World, all []*known.Server) []wake {
	t.Helper()
	var wakes []wake
	for _, s := range all {
		status, err := w.Status(bounded(t), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		last := status.GetLastWake()
		if status.GetWakes() != 1 || last.GetOutcome() != "restored" {
			t.Errorf("%s: %d wakes, the last %v", s.ID, status.GetWakes(), last)
		}
		begin := time.UnixMilli(last.GetStartedUnixMs())
		wakes = append(wakes, wake{s.ID, begin, begin.Add(time.Duration(last.GetTotalMs() * float64(time.Millisecond)))})
	}
	slices.SortFunc(wakes, func(a, b wake) int { return a.begin.Compare(b.begin) })
	return wakes
}

// TestNoRoom: on a node that can't ever have the memory, a client that speaks HTTP is told by a status when to come again, and
// any other is reset; the workload sleeps on, and loses nothing. What the shim begins by itself can't be refused.
func TestNoRoom(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`, "min-free-memory": `"1024TiB"`}})
	s := servers(t, w, 1)[0]
	client := w.HTTP()
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + s.Address(8080) + "/counter")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	after, nan := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusServiceUnavailable || after < 1 || nan != nil || err != nil || !strings.Contains(string(body), "asleep") {
		t.Errorf("%v: %q, %v", resp, body, err)
	}
	c, err := w.Dial(bounded(t), "tcp", s.Address(7000))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := echo(c, "hello"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that speaks no HTTP: %v", err)
	}
	if status, err := w.Status(bounded(t), s.ID); err != nil || status.GetState() != "asleep" || status.GetWakes() != 0 {
		t.Errorf("%s after %d wakes: %v", status.GetState(), status.GetWakes(), err)
	}
	if log := daemonLog(t, w); !strings.Contains(log, "a wake is refused") || !strings.Contains(log, "reason=memory") {
		t.Error("the log does not tell why:", log)
	}
	if _, err := w.Wake(bounded(t), s.ID); err != nil {
		t.Error("a wake by hand:", err)
	}
	s.GoesOn()
}

// TestShimHangs: clients of a sleeper whose shim is stopped are held, which is told, and answered when it goes on.
func TestShimHangs(t *testing.T) {
	const held = 20
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	s := servers(t, w, 1)[0]
	shim := s.Shim()
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(shim, syscall.SIGCONT)
	answers := make(chan error, held)
	for i := range held {
		c, err := w.Dial(bounded(t), "tcp", s.Address(7000))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() { answers <- echo(c, fmt.Sprint("held ", i)) }()
	}
	eventually(t, "its silence is told", func() bool { return strings.Contains(daemonLog(t, w), "the shim gives no sign of the wake") })
	select {
	case err := <-answers:
		t.Fatal("an answer while the shim is stopped:", err)
	default:
	}
	if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range held {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	s.GoesOn()
}

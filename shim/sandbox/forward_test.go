package sandbox

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// stuck is a runsc whose helper inside connects, and ends by nothing but a signal; or not even by that.
type stuck struct {
	killed   chan struct{}
	immortal bool
	kills    atomic.Int32
}

const insidePid = 7

// Run implements runsc.Runner.
func (s *stuck) Run(ctx context.Context, cmd *exec.Cmd) error {
	if slices.Contains(cmd.Args, "kill") {
		if !slices.Contains(cmd.Args, fmt.Sprintf("--pid=%d", insidePid)) {
			return fmt.Errorf("killed %v", cmd.Args)
		}
		if s.kills.Add(1); !s.immortal {
			close(s.killed)
		}
		return nil
	}
	if _, err := cmd.Stdin.(*os.File).Write([]byte{'+'}); err != nil { // before its caller has the pid, and closes what it gave
		return err
	}
	fmt.Fprintf(pidFile(cmd), "%d\n", insidePid)
	select {
	case <-s.killed:
		return &runsc.ExitError{Code: 137}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pidFile is the one that the command names as its descriptor.
func pidFile(cmd *exec.Cmd) *os.File {
	for _, a := range cmd.Args {
		var fd int
		if n, _ := fmt.Sscanf(strings.TrimPrefix(a, "--internal-pid-file="), "/proc/self/fd/%d", &fd); n == 1 && strings.HasPrefix(a, "--internal") {
			return cmd.ExtraFiles[fd-3]
		}
	}
	return nil
}

// stuckForward is a connection to the loopback of a sandbox whose process doesn't end.
func stuckForward(t *testing.T, s *stuck, abandoned *atomic.Bool) (*forwarding, *insideConn) {
	t.Helper()
	w := bare()
	w.state = lifecycle.Awake
	w.helper = filepath.Join(t.TempDir(), "helper")
	if err := os.WriteFile(w.helper, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	s.killed = make(chan struct{})
	w.runsc = &runsc.Client{Path: "runsc", Root: t.TempDir(), LogDir: t.TempDir(), Runner: s, Timeouts: runsc.Timeouts{Control: 50 * time.Millisecond}}
	f := newForwarding(w)
	f.insideEnds, f.lookEvery = time.Millisecond, time.Millisecond
	f.abandoned = func(_, _ netip.AddrPort) bool { return abandoned.Load() }
	c, err := f.dialInside(t.Context(), netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:7000"))
	if err != nil {
		t.Fatal(err)
	}
	return f, c.(*insideConn)
}

func (f *forwarding) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.inside)
}

func awaitUncounted(t *testing.T, f *forwarding, c *insideConn) {
	t.Helper()
	select {
	case <-c.Done:
	case <-time.After(time.Minute):
		t.Fatal("its process is still waited for")
	}
	for begin := time.Now(); f.count() > 0 || len(f.slots) > 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d are counted, %d have a process", f.count(), len(f.slots))
		}
	}
}

// A process inside that doesn't end when its connection does is killed, and hinders no sleep; nor does one that can't be killed.
func TestStuckPortForwardIsEnded(t *testing.T) {
	for name, end := range map[string]func(*forwarding, *insideConn, *atomic.Bool){
		"closed":              func(_ *forwarding, c *insideConn, _ *atomic.Bool) { c.Close() },
		"its client has gone": func(_ *forwarding, _ *insideConn, abandoned *atomic.Bool) { abandoned.Store(true) },
		"it is to sleep": func(f *forwarding, _ *insideConn, _ *atomic.Bool) {
			if err := f.endInside(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		for _, immortal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, immortal %t", name, immortal), func(t *testing.T) {
				var abandoned atomic.Bool
				s := &stuck{immortal: immortal}
				f, c := stuckForward(t, s, &abandoned)
				defer c.Close()
				if f.count() != 1 || f.busy(time.Now(), time.Hour) != 1 {
					t.Fatalf("%d are counted", f.count())
				}
				end(f, c, &abandoned)
				awaitUncounted(t, f, c)
				if n := s.kills.Load(); n != 1 {
					t.Errorf("killed %d times", n)
				}
			})
		}
	}
}

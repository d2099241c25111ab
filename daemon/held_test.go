package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// playing names, for a process of the test's, what it is to play there: so that the memory of a daemon can be told apart, and
// that each of them has descriptors enough.
const playing = "HIBERNATE_TEST_PLAYS"

func TestMain(m *testing.M) {
	role, ok := map[string]func(args []string) error{"daemon": beDaemon, "server": beServer, "clients": beClients, "drainer": beDrainer}[os.Getenv(playing)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// player is a process that plays a role until its input ends.
type player struct {
	t      *testing.T
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *bufio.Reader
}

func play(t *testing.T, log io.Writer, role string, args ...string) *player {
	t.Helper()
	p := &player{t: t, cmd: exec.Command("/proc/self/exe", args...)}
	p.cmd.Env = append(os.Environ(), playing+"="+role)
	p.cmd.Stderr = log
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.output = bufio.NewReader(output)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.input.Close()
		_, _ = io.Copy(io.Discard, p.output)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	})
	return p
}

// hear waits for the next line.
func (p *player) hear() string {
	p.t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		p.t.Fatal("a process of the test's has ended:", err)
	}
	return strings.TrimSpace(line)
}

// untilTold returns when the process is to end.
func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// beDaemon passes on so many connections at once as it may have files for, two each and some more.
func beDaemon(args []string) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		untilTold()
		stop()
	}()
	return daemon.Run(ctx, daemon.Options{
		RunDir: args[0], Grace: 100 * time.Millisecond, Connections: capacity(), Ready: func() { fmt.Println("ready") },
		Limits: wakeproxy.Limits{Connections: 1 << 20},
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Dial: func(ctx context.Context, _ *os.File, _, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", args[1])
		},
	})
}

func capacity() int {
	var files unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return int(files.Cur-1000) / 3
}

// beServer tells its address, and sends back what it gets.
func beServer([]string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				word := make([]byte, 5)
				for {
					if _, err := io.ReadFull(conn, word); err != nil {
						return
					}
					if _, err := conn.Write(word); err != nil {
						return
					}
				}
			}()
		}
	}()
	untilTold()
	return l.Close()
}

// beClients connects so many clients to an address, tells that, and then how many were not answered. Where they stay, they end
// with the process.
func beClients(args []string) error {
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	stay := args[2] == "stay"
	conns := make([]net.Conn, number)
	var dialling errgroup.Group
	dialling.SetLimit(64)
	for i := range conns {
		dialling.Go(func() (err error) {
			if conns[i], err = net.DialTimeout("tcp", args[0], 30*time.Second); err != nil {
				return fmt.Errorf("refused: %w", err)
			}
			_, err = conns[i].Write([]byte("hello"))
			return err
		})
	}
	if err := dialling.Wait(); err != nil {
		return err
	}
	fmt.Println("connected")
	lost := 0
	for i, c := range conns {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		answer := make([]byte, 5)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
			fmt.Fprintf(os.Stderr, "client %d: %v\n", i, err)
			lost++
		}
		if !stay {
			_ = c.Close()
		}
	}
	fmt.Println(lost)
	untilTold()
	return nil
}

// resident is the memory of a process, now and at most, in MiB.
func resident(t *testing.T, pid int) (now, most int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		if field := strings.Fields(value); name == "VmRSS" || name == "VmHWM" {
			kib, err := strconv.Atoi(field[0])
			if err != nil {
				t.Fatal(err)
			}
			if name == "VmRSS" {
				now = kib >> 10
			} else {
				most = kib >> 10
			}
		}
	}
	return now, most
}

// memoryBound is what the daemon may take while clients wait, in MiB.
const memoryBound = 200

// TestThousandsAreHeld: clients wait by the thousand for workloads that don't wake yet. None is refused, none is reset, all are
// answered, and the daemon stays small. The size is 2,000 for one workload; with HIBERNATE_FULL 5,000 for each of four, for which
// the kernel's backlogs must be deep enough. Where the daemon may not have files enough for all at once, clients leave when they
// were answered.
func TestThousandsAreHeld(t *testing.T) {
	workloads, each := 1, 2000
	if os.Getenv("HIBERNATE_FULL") != "" {
		workloads, each = 4, 5000
	}
	all := workloads * each
	stay := map[bool]string{true: "stay", false: "leave"}[capacity() >= all]
	n := newNode(t)
	server := play(t, &n.log, "server")
	hibernated := play(t, &n.log, "daemon", n.runDir, server.hear())
	hibernated.hear()
	gate := make(chan struct{})
	var clients []*player
	for i := range workloads {
		shim := shimtest.Start(t, "default", fmt.Sprint("many-", i))
		shim.State("asleep")
		shim.OnWake(func(context.Context) error { <-gate; return nil })
		address, file := listener(t)
		n.register(shim, map[uint16]*os.File{80: file})
		clients = append(clients, play(t, &n.log, "clients", address, fmt.Sprint(each), stay))
	}
	for _, c := range clients {
		c.hear()
	}
	eventually(t, "all of them wait", func() bool {
		held := 0
		for _, w := range n.list() {
			held += int(w.GetIdle().GetHeldConnections())
		}
		return held == all
	})
	waiting, _ := resident(t, hibernated.cmd.Process.Pid)
	close(gate)
	for i, c := range clients {
		if lost := c.hear(); lost != "0" {
			t.Errorf("%s of %d clients of workload %d were not answered", lost, each, i)
		}
	}
	now, most := resident(t, hibernated.cmd.Process.Pid)
	t.Logf("%d clients of %d workloads, who %s: the daemon takes %d MiB while they wait, %d when all were answered, %d at most",
		all, workloads, stay, waiting, now, most)
	if waiting > memoryBound {
		t.Errorf("the daemon takes %d MiB while they wait", waiting)
	}
}

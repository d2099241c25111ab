package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// crowdEnv makes a process of this program a crowd: "ADDRESS NUMBER".
	crowdEnv = "HIBERNATE_BENCH_CROWD"
	echoPort = 7000
	// filesOfServer is the limit of open files of a server that many clients come to at once.
	filesOfServer = "16384:16384"
)

// A fate is what became of clients.
type fate struct {
	Answered, Refused, Reset, Lost int

	Connect, Answer samples // of those who were connected and answered
}

func (f *fate) add(o fate) {
	f.Answered, f.Refused, f.Reset, f.Lost = f.Answered+o.Answered, f.Refused+o.Refused, f.Reset+o.Reset, f.Lost+o.Lost
	f.Connect, f.Answer = append(f.Connect, o.Connect...), append(f.Answer, o.Answer...)
}

// of sorts one client's end.
func (f *fate) of(err error) {
	switch {
	case err == nil:
		f.Answered++
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Refused++
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		f.Reset++
	default:
		f.Lost++
	}
}

// beCrowd connects many clients, each with a line, says so, waits for a line, and tells what became of them. Each waits for its
// answer from the beginning. It is a process of its own, so that nobody has too many files open.
func beCrowd(task string) int {
	address, text, _ := strings.Cut(task, " ")
	number, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	var all fate // guarded by mu
	var dialling, hearing errgroup.Group
	dialling.SetLimit(1000) // all of a burst
	for i := range number {
		dialling.Go(func() error {
			began, line := time.Now(), fmt.Sprintf("client %d\n", i)
			c, err := net.DialTimeout("tcp", address, answerLimit)
			connect := time.Since(began)
			if err == nil {
				_, err = io.WriteString(c, line)
			}
			hearing.Go(func() error {
				if err == nil {
					err = hear(c, line)
				}
				took := time.Since(began)
				if c != nil {
					_ = c.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				if all.of(err); err == nil {
					all.Connect.add(connect)
					all.Answer.add(took)
				}
				return nil
			})
			return nil
		})
	}
	_ = dialling.Wait()
	fmt.Println("connected")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	_ = hearing.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(all)
	return 0
}

// hear waits for a line.
func hear(c net.Conn, want string) error {
	if err := c.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("after %q: %w", got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("heard %q, not %q", got, want)
	}
	return nil
}

// crowd is a process that plays many clients.
type crowd struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// newCrowd begins to connect n clients from the client's network.
func newCrowd(o *ours, n int) (*crowd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &crowd{cmd: exec.Command(self)}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", crowdEnv, net.JoinHostPort(o.pod.IP, fmt.Sprint(echoPort)), n))
	c.cmd.Stderr = os.Stderr
	o.world.Adopt(c.cmd)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	o.client.thread.do(func() { err = c.cmd.Start() })
	return c, err
}

// connected waits until all have tried.
func (c *crowd) connected() error {
	_, err := c.out.ReadString('\n')
	return err
}

// end has them wait for their answers, and tells what became of them.
func (c *crowd) end() (f fate, err error) {
	_, err = io.WriteString(c.in, "\n")
	if err == nil {
		err = json.NewDecoder(c.out).Decode(&f)
	}
	return f, errors.Join(err, c.in.Close(), c.cmd.Wait())
}

// measureCrowd has thousands of clients held, while no shim can wake: they are stopped until all have connected.
func measureCrowd(ctx context.Context, b *bench) (err error) {
	var all []*ours
	defer func() {
		for _, o := range all {
			err = errors.Join(err, o.close())
		}
	}()
	for i := range b.plan.crowds {
		o, err := newServer(ctx, b, fmt.Sprint("crowd-", i))
		if err != nil {
			return err
		}
		all = append(all, o)
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
	}
	total, waiting, most, err := b.holdCrowds(ctx, all)
	if err != nil {
		return err
	}
	clients := b.plan.crowds * b.plan.crowd
	b.add("held_clients", float64(total.Answered), "clients", fmt.Sprint(">= ", clients), clients)
	b.add("held_refused", float64(total.Refused), "clients", "<= 0", clients)
	b.add("held_reset", float64(total.Reset+total.Lost), "clients", "<= 0", clients)
	b.add("held_daemon_mib", max(waiting, most), "MiB", "<= 200", clients)
	b.add("held_daemon_waiting_mib", waiting, "MiB", "", clients)
	return nil
}

// newServer runs a server that may have many connections, each of its own file.
func newServer(ctx context.Context, b *bench, id string) (*ours, error) {
	return newServerOf(ctx, b, id, flatLoad, 0)
}

// newServerOf is one with a heap of mib MiB whose wakes are of one way.
func newServerOf(ctx context.Context, b *bench, id, way string, mib int) (*ours, error) {
	return newOursOf(ctx, b, id, func(o *ours) (harness.Container, error) {
		c := o.container(mib, nil)
		c.Flags = append(c.Flags, "--rlimit-nofile", filesOfServer)
		return c, b.choose(&c, way)
	})
}

// holdCrowds tells what became of all, and the daemon's resident memory in MiB while they waited, and at most so far.
func (b *bench) holdCrowds(ctx context.Context, all []*ours) (total fate, waiting, most float64, err error) {
	var crowds []*crowd
	for _, o := range all {
		record, err := b.world.Record(o.id)
		if err != nil {
			return total, 0, 0, err
		}
		if err := syscall.Kill(record.Pid, syscall.SIGSTOP); err != nil {
			return total, 0, 0, err
		}
		defer func() { _ = syscall.Kill(record.Pid, syscall.SIGCONT) }()
		c, err := newCrowd(o, b.plan.crowd)
		if err != nil {
			return total, 0, 0, err
		}
		crowds = append(crowds, c)
	}
	for _, c := range crowds {
		if err := c.connected(); err != nil {
			return total, 0, 0, err
		}
	}
	if waiting, _, err = resident(b.world.Daemon.Pid()); err != nil {
		return total, 0, 0, err
	}
	for _, o := range all {
		record, err := b.world.Record(o.id)
		if err == nil {
			err = syscall.Kill(record.Pid, syscall.SIGCONT)
		}
		if err != nil {
			return total, 0, 0, err
		}
	}
	fates := make([]fate, len(crowds))
	var ends errgroup.Group
	for i, c := range crowds {
		ends.Go(func() (err error) { fates[i], err = c.end(); return err })
	}
	if err := ends.Wait(); err != nil {
		return total, 0, 0, err
	}
	for _, f := range fates {
		total.add(f)
	}
	for _, o := range all {
		if _, err := o.shim.Status(ctx, &shimv1.StatusRequest{}); err != nil {
			return total, 0, 0, err
		}
	}
	_, most, err = resident(b.world.Daemon.Pid())
	return total, waiting, most, err
}

// resident is the memory of a process, now and at most, in MiB.
func resident(pid int) (now, most float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "VmRSS:" && f[0] != "VmHWM:" {
			continue
		}
		kib, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return 0, 0, err
		}
		if f[0] == "VmRSS:" {
			now = kib / 1024
		} else {
			most = kib / 1024
		}
	}
	return now, most, nil
}

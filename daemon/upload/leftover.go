package upload

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// leftover gives the workers of all uploads the processor time that nobody else on the node wants. (Threads of a lower priority would
// do the same, but the runtime waits for each of its threads now and then, and the wake proxy with it.)
type leftover struct {
	cores float64
	now   func() time.Time
	busy  func() (time.Duration, error) // of all processors together, since some time
	pause func(context.Context, time.Duration)

	mu     sync.Mutex // guards the fields below
	since  time.Time  // of the window
	was    time.Duration
	spent  time.Duration // in the window
	budget float64       // processors that workers may use together
	free   time.Time     // when what was spent is paid for
}

const (
	window = 200 * time.Millisecond // of /proc/stat's ticks there must be some
	// staleWindow is so long ago that it says nothing of now.
	staleWindow = 4 * time.Second
	// margin is left to the others beyond what they used last, in processors: they may be waiting.
	margin = 0.1
	// leastShare of a processor is used whatever the others want: each upload comes to its end.
	leastShare = 0.03
	// ahead is how much may be used at once. Larger than a piece of work takes, a chunk of 1 MiB.
	ahead = 20 * time.Millisecond
	// longestPause is how long one wait may be: then it is looked again.
	longestPause = time.Second
)

func newLeftover() *leftover {
	cores := float64(runtime.NumCPU())
	return &leftover{cores: cores, now: time.Now, busy: busyTime, pause: sleep, budget: cores}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// spend pays for processor time that a worker has used: it returns when the worker may go on, or ctx ends.
func (l *leftover) spend(ctx context.Context, cpu time.Duration) {
	debt := l.owe(cpu)
	for debt > 0 && ctx.Err() == nil {
		l.pause(ctx, min(debt, longestPause))
		debt = l.owe(0)
	}
}

// owe notes what was used, and says how long to wait.
func (l *leftover) owe(cpu time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.spent += cpu
	if now.Sub(l.since) >= window {
		l.look(now)
	}
	if l.free.Before(now.Add(-ahead)) {
		l.free = now.Add(-ahead)
	}
	l.free = l.free.Add(time.Duration(float64(cpu) / l.budget))
	return l.free.Sub(now)
}

// look begins another window: what the others used in the last is left to them, and a little more.
func (l *leftover) look(now time.Time) {
	busy, err := l.busy()
	if took := now.Sub(l.since); err == nil && took < staleWindow {
		others := max(0, float64(busy-l.was-l.spent)/float64(took))
		l.budget = max(leastShare, l.cores-others-margin)
	} else { // of long ago, or the first
		l.budget = l.cores
	}
	l.since, l.was, l.spent = now, busy, 0
}

// tick is the unit of /proc/stat, on all of Linux's architectures.
const tick = time.Second / 100

// busyTime reads how long the node's processors have worked, or been withheld by a hypervisor. See proc(5), stat.
func busyTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return parseBusy(string(line))
}

func parseBusy(line string) (time.Duration, error) {
	var busy time.Duration
	fields := bytes.Fields([]byte(line))
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, errors.New("/proc/stat does not begin with the processors' times")
	}
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal; guests are among users
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 {
			busy += time.Duration(n) * tick
		}
	}
	return busy, nil
}

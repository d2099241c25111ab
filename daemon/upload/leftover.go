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

	"golang.org/x/sys/unix"
)

// leftover has uploads use no more of the processors than the others on the node leave: what this process uses meanwhile, to send too,
// counts as theirs. (Threads of a lower priority would not do: the runtime waits for each of its threads now and then, and the wake
// proxy with it.)
type leftover struct {
	cores float64
	now   func() time.Time
	busy  func() (time.Duration, error) // of all processors together, since some time
	own   func() time.Duration          // of this process
	pause func(context.Context, time.Duration)

	mu     sync.Mutex    // guards the fields below
	since  time.Time     // of the window
	was    time.Duration // busy
	wasOwn time.Duration
	paid   time.Duration // own
	others float64       // the part of all processors that others used
	budget float64       // processors that uploads may use together
	at     time.Time     // of the last call
	owed   time.Duration // of processor time, of what was used and not yet earned
}

const (
	window = 200 * time.Millisecond // of /proc/stat's ticks there must be some
	// staleWindow is so long ago that it says nothing of now.
	staleWindow = 4 * time.Second
	// Where the others use no more than quiet of the node's processors, workers use what they can; where they use loud of them, next
	// to nothing: who waits for his own requests' answers leaves some time unused, and is slowed down all the same.
	quiet, loud = 0.4, 0.8
	// forget is how much of a loud window still counts in the next: who works in bursts is loud.
	forget = 0.97
	// leastShare of a processor is used whatever the others want.
	leastShare = 0.03
	// firstShare of a processor is used as long as nothing is known of the others.
	firstShare = 0.25
	// ahead is how much may be used at once.
	ahead = 20 * time.Millisecond
	// leastPause is worth a pause, and mostPause is the longest after a piece of work: each upload comes to its end.
	leastPause, mostPause = time.Millisecond, time.Second
)

func newLeftover() *leftover {
	cores := float64(runtime.NumCPU())
	return &leftover{cores: cores, now: time.Now, busy: busyTime, own: ownTime, pause: sleep, budget: firstShare}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// pace returns when a worker may go on, after mostPause at the latest, or when ctx ends. What is still owed then is forgiven: it may be the
// wake proxy's, which never stops.
func (l *leftover) pace(ctx context.Context) {
	for left := mostPause; ctx.Err() == nil; {
		debt := l.owe()
		if debt < leastPause {
			return
		}
		if left <= 0 {
			l.forgive()
			return
		}
		debt = min(debt, window, left)
		l.pause(ctx, debt)
		left -= debt
	}
}

func (l *leftover) forgive() {
	l.mu.Lock()
	l.owed = 0
	l.mu.Unlock()
}

// owe pays for what was used since the last call, and says how long to wait.
func (l *leftover) owe() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, own := l.now(), l.own()
	if now.Sub(l.since) >= window {
		l.look(now, own)
	}
	earned := time.Duration(float64(now.Sub(l.at)) * l.budget)
	l.owed = max(l.owed-earned, -ahead) + own - l.paid
	l.at, l.paid = now, own
	return time.Duration(float64(l.owed) / l.budget)
}

// look begins another window, in which workers use what the others left in the last.
func (l *leftover) look(now time.Time, own time.Duration) {
	busy, err := l.busy()
	if took := now.Sub(l.since); err == nil && took < staleWindow {
		others := float64(busy-l.was-(own-l.wasOwn)) / float64(took) / l.cores
		l.others = max(others, forget*l.others)
		l.budget = max(leastShare, l.cores*min(1, (loud-l.others)/(loud-quiet)))
	} else { // of long ago, or the first
		l.budget, l.others = firstShare, 0
		l.at, l.paid, l.owed = now, own, 0
	}
	l.since, l.was, l.wasOwn = now, busy, own
}

func ownTime() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
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

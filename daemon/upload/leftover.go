package upload

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// leftover has uploads use no more of the processors than the others on the node leave. (Threads of a lower priority would not do: the
// runtime waits for each of its threads now and then, and the wake proxy with it.)
type leftover struct {
	cores float64
	now   func() time.Time
	busy  func() (time.Duration, error) // of all processors together, since some time
	own   func() time.Duration          // of this process
	pause func(context.Context, time.Duration)

	mu     sync.Mutex    // guards the fields below
	used   time.Duration // by uploads, of processor time
	since  time.Time     // of the window
	before spent         // at its beginning
	others float64       // the part of all processors that others used
	budget float64       // processors that uploads may use together
	at     time.Time     // of the last call
	owed   time.Duration // of processor time, of what was used and not yet earned
}

// spent is processor time since some time: of all together, of this process, of its uploads.
type spent struct{ busy, own, used time.Duration }

const (
	window = 200 * time.Millisecond // of /proc/stat's ticks there must be some
	// staleWindow is so long ago that it says nothing of now.
	staleWindow = 4 * time.Second
	// Where the others use no more than quiet of the node's processors, workers use what they can; where they use loud of them, next
	// to nothing: who waits for his own requests' answers leaves some time unused, and is slowed down all the same.
	quiet, loud = 0.4, 0.7
	// forget is how much of a loud window still counts in the next: who works in bursts is loud.
	forget = 0.97
	// leastShare of all processors is used whatever the others want.
	leastShare = 0.01
	// firstShare of a processor is used as long as nothing is known of the others.
	firstShare = 0.25
	// ahead is how much may be used at once.
	ahead = 20 * time.Millisecond
	// leastPause is worth a pause.
	leastPause = time.Millisecond
	// mostPiece is what a piece of work of a MiB or less may count, however long it waited for the disk, or for a processor.
	mostPiece = 20 * time.Millisecond
	// sendCost is what sending takes of a processor for each MiB: two hashes of it, copies, the kernel's part.
	sendCost = 3 * time.Millisecond
	// uncounted is what uploads use for what they are known to.
	uncounted = 1.25
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

// pace counts what a worker has done, which took that long, and what has been sent, in bytes; it returns when a worker may go on, or ctx ends.
func (l *leftover) pace(ctx context.Context, took time.Duration, sent int64) {
	l.charge(min(took, mostPiece) + time.Duration(sent)*sendCost>>20)
	if isUrgent(ctx) {
		return
	}
	for ctx.Err() == nil {
		debt := l.debt()
		if debt < leastPause {
			return
		}
		l.pause(ctx, min(debt, window))
	}
}

func (l *leftover) charge(used time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used += used
	l.owed += used
}

// debt says how long to wait until what was used has been earned.
func (l *leftover) debt() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.since) >= window {
		l.look(now)
	}
	earned := time.Duration(float64(now.Sub(l.at)) * l.budget)
	l.owed = max(l.owed-earned, -ahead)
	l.at = now
	return time.Duration(float64(l.owed) / l.budget)
}

// look begins another window, in which workers use what the others left in the last.
func (l *leftover) look(now time.Time) {
	busy, err := l.busy()
	s := spent{busy, l.own(), l.used}
	if took := now.Sub(l.since); err == nil && took < staleWindow {
		// A part of what uploads take nobody has counted, as the collection of garbage; what they have waited is counted, too.
		mine := min(time.Duration(uncounted*float64(s.used-l.before.used)), s.own-l.before.own)
		others := float64(s.busy-l.before.busy-mine) / float64(took) / l.cores
		l.others = max(others, forget*l.others)
		l.budget = l.cores * max(leastShare, min(1, (loud-l.others)/(loud-quiet)))
	} else { // of long ago, or the first
		l.budget, l.others = firstShare, 0
		l.at, l.owed = now, min(l.owed, mostPiece)
	}
	l.since, l.before = now, s
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

type urgency struct{}

// urgent is the context of work that leaves nothing to others while hurry is true: somebody waits for it.
func urgent(ctx context.Context, hurry *atomic.Bool) context.Context {
	return context.WithValue(ctx, urgency{}, hurry)
}

func isUrgent(ctx context.Context) bool {
	hurry, _ := ctx.Value(urgency{}).(*atomic.Bool)
	return hurry != nil && hurry.Load()
}

package selfprobe_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/selfprobe"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

// TestOnce: what works is found to work, and leaves nothing.
func TestOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	before := files(t)
	for range 20 {
		if err := selfprobe.Once(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if after := files(t); after > before+2 { // the poller's own
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func files(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestShortage: a process that has no descriptors left finds that out.
func TestShortage(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = uint64(files(t)) + 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := selfprobe.Once(ctx); err == nil {
		t.Error("nothing is found")
	}
}

// TestProber: broken after two failures in a row, with one line for that and one for its end.
func TestProber(t *testing.T) {
	results := []error{nil, errors.New("once"), nil, errors.New("twice"), errors.New("thrice"), errors.New("more"), nil}
	var log testlog.Buffer
	var told []error
	broken := make(chan bool, len(results))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var p *selfprobe.Prober
	p = selfprobe.New(selfprobe.Options{
		Every: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Probe: func(context.Context) error { return results[len(told)] },
		Told: func(err error) {
			broken <- p.Err() != nil
			if told = append(told, err); len(told) == len(results) {
				cancel()
			}
		},
	})
	p.Run(ctx)
	for i, want := range []bool{false, false, false, false, true, true, false} {
		if got := <-broken; got != want {
			t.Errorf("after probe %d: broken is %v", i, got)
		}
	}
	if text := log.String(); strings.Count(text, "path is broken") != 1 || strings.Count(text, "works again") != 1 {
		t.Errorf("log:\n%s", text)
	}
}

// TestNothingIsProbedAfterTheEnd: not even when the next probe was due as the end came.
func TestNothingIsProbedAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = time.Second
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			probes := 0
			selfprobe.New(selfprobe.Options{
				Every: every,
				Probe: func(context.Context) error { probes++; return nil },
				Told: func(error) {
					cancel()
					time.Sleep(2 * every)
				},
			}).Run(ctx)
			if probes != 1 {
				t.Fatalf("%d probes, want 1", probes)
			}
		}
	})
}

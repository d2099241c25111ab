package shimclient_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

func open(t *testing.T, address string) *shimclient.Client {
	c := shimclient.New(address)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestErrorsKeepTheirClass(t *testing.T) {
	for _, want := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrNotFound} {
		shim := shimtest.Start(t, "default", "redis")
		shim.OnHibernate(func(context.Context) error { return fmt.Errorf("no room on the disk: %w", want) })
		_, err := open(t, shim.Address).Hibernate(t.Context(), &shimv1.HibernateRequest{})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want it to be %v", err, want)
		}
		if got := shimclient.Message(err); got != "hibernate: no room on the disk" {
			t.Errorf("message %q", got)
		}
	}
}

func TestDeadline(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	shim.Hang(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := open(t, shim.Address).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
}

func TestUnreachableAndClosed(t *testing.T) {
	c := open(t, "unix:///nonexistent/socket")
	if _, err := c.Status(t.Context()); !errors.Is(err, shimclient.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
	_ = c.Close()
	if _, err := c.Status(t.Context()); !errors.Is(err, shimclient.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestManyCallersShareAConnection(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	c := open(t, shim.Address)
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if _, err := c.Activity(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if got := shim.Samples(); got != 50 {
		t.Errorf("%d samples", got)
	}
}

func TestWatchSeesChangesAndEnds(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	c := open(t, shim.Address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	states := make(chan string, 10)
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(ctx, func(e *shimv1.Event) { states <- e.GetState() }) }()
	if got := <-states; got != "awake" {
		t.Fatalf("first state %s", got)
	}
	if _, err := c.Hibernate(ctx, &shimv1.HibernateRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hibernating", "asleep"} {
		if got := <-states; got != want {
			t.Fatalf("state %s, want %s", got, want)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a watch that ended says why")
	}
}

func TestWatchEndsWithTheShim(t *testing.T) {
	for range 50 { // the end is told in one of two ways
		shim := shimtest.Start(t, "default", "redis")
		err := open(t, shim.Address).Watch(t.Context(), func(*shimv1.Event) { go shim.Stop() })
		if !errors.Is(err, shimclient.ErrUnreachable) {
			t.Fatalf("got %v, want ErrUnreachable", err)
		}
	}
}

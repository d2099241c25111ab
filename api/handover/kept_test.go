package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
)

// send registers and wants nothing kept.
func send(c *Conn, h Hello, files []*os.File) error {
	kept, err := c.Send(context.Background(), h, files)
	if len(kept) > 0 {
		return fmt.Errorf("%d descriptors were kept", len(kept))
	}
	return err
}

// What the daemon has kept comes with the acknowledgement, each descriptor under its port, however many there are.
func TestKeptComesWithTheAcknowledgement(t *testing.T) {
	for _, n := range []int{0, 1, 200, 450} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c, p := pair(t)
			files := memFiles(t, n)
			want := make(map[uint16]*os.File)
			for i, f := range files {
				want[uint16(i+1)] = f
			}
			go func() {
				_, received, err := p.Receive(testContext(t))
				CloseFiles(received)
				if err = errors.Join(err, p.Return(want), p.Acknowledge(nil)); err != nil {
					t.Error(err)
				}
			}()
			kept, err := c.Send(testContext(t), helloWith(0), memFiles(t, 1))
			if err != nil || len(kept) != n {
				t.Fatalf("%d descriptors were kept, not %d: %v", len(kept), n, err)
			}
			for port, f := range kept {
				text, err := io.ReadAll(io.NewSectionReader(f, 0, 8))
				if string(text) != fmt.Sprint(port-1) {
					t.Errorf("port %d has %q: %v", port, text, err)
				}
				f.Close()
			}
		})
	}
}

// A refused hello, and one whose sender has left, leave no descriptors open (noLeaks of pair).
func TestKeptOfARefusedHelloIsClosed(t *testing.T) {
	c, p := pair(t)
	kept := map[uint16]*os.File{80: memFiles(t, 1)[0]}
	answer := func(refusal error) {
		_, received, err := p.Receive(testContext(t))
		CloseFiles(received)
		if err = errors.Join(err, p.Return(kept), p.Acknowledge(refusal)); err != nil {
			t.Error(err)
		}
	}
	go answer(errors.New("no"))
	if got, err := c.Send(testContext(t), helloWith(0), memFiles(t, 1)); !errors.Is(err, ErrRefused) || len(got) > 0 {
		t.Errorf("%d descriptors, %v", len(got), err)
	}
	short, cancel := context.WithCancel(testContext(t))
	cancel()
	if got, err := c.Send(short, helloWith(0), memFiles(t, 1)); !errors.Is(err, context.Canceled) || len(got) > 0 {
		t.Errorf("%d descriptors, %v", len(got), err)
	}
}

// The end is told once, and the connection is of use after it.
func TestEnd(t *testing.T) {
	c, p := pair(t)
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Receive(testContext(t)); !errors.Is(err, ErrEnded) {
		t.Fatalf("received %v", err)
	}
	go func() {
		_, received, err := p.Receive(testContext(t))
		CloseFiles(received)
		if err = errors.Join(err, p.Acknowledge(nil)); err != nil {
			t.Error(err)
		}
	}()
	if err := send(c, helloWith(0), memFiles(t, 1)); err != nil {
		t.Error(err)
	}
}

// What was said before the connection was closed is heard.
func TestEndIsHeardAfterClose(t *testing.T) {
	c, p := pair(t)
	if err := errors.Join(c.End(), c.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Receive(testContext(t)); !errors.Is(err, ErrEnded) {
		t.Errorf("received %v", err)
	}
	if _, _, err := p.Receive(testContext(t)); !errors.Is(err, ErrGone) {
		t.Errorf("then received %v", err)
	}
}

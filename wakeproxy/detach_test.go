package wakeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// handOn has the rig's proxy let go of its connections, and another one carry them on until the test ends.
func (r *rig) handOn(want int) (results chan error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	loose := r.proxy.Detach(ctx)
	if len(loose) != want {
		r.t.Fatalf("%d connections were let go of, not %d", len(loose), want)
	}
	if n := r.proxy.Active(); n != 0 {
		r.t.Errorf("%d connections are still the old proxy's", n)
	}
	next := New(Options{Waker: r.waker, Dialer: r.dialer})
	living, end := context.WithCancel(context.Background())
	results = make(chan error, len(loose))
	for _, d := range loose {
		go func() { results <- next.Resume(living, d) }()
	}
	r.t.Cleanup(func() {
		end()
		if err := next.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			r.t.Error("shutdown of the next:", err)
		}
	})
	return results
}

// A connection goes on with another proxy where it was, bytes on their way included, and nobody notices.
func TestDetachedConnectionGoesOn(t *testing.T) {
	r := newRig(t, echo)
	r.start()
	c := r.dial()
	const size = 8 << 20 // more than fits between the two ends
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(pattern(size))
		sent <- errors.Join(err, c.CloseWrite())
	}()
	read := func(from, n int) {
		t.Helper()
		got := make([]byte, n)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatalf("after %d bytes: %v", from, err)
		}
		want := pattern(from + n)[from:]
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("byte %d is %d, not %d", from+i, got[i], want[i])
			}
		}
	}
	read(0, 1000)
	time.Sleep(50 * time.Millisecond) // all that lies between is full
	results := r.handOn(1)
	read(1000, size-1000)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
	if err := errors.Join(<-sent, <-results); err != nil {
		t.Error(err)
	}
	if ends := r.observer.ends(); len(ends) != 1 || !errors.Is(ends[0].Err, ErrDetached) {
		t.Errorf("told of %+v", ends)
	}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// What had ended stays so, and what ends later passes: half-closes of both sides, and resets.
func TestDetachedConnectionEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, client, server *net.TCPConn, move func()){
		"the client's end before": func(t *testing.T, client, server *net.TCPConn, move func()) {
			client.CloseWrite()
			hears(t, server, "", io.EOF)
			move()
			says(t, server, "late")
			server.CloseWrite()
			hears(t, client, "late", io.EOF)
		},
		"the server's end before": func(t *testing.T, client, server *net.TCPConn, move func()) {
			server.CloseWrite()
			hears(t, client, "", io.EOF)
			move()
			says(t, client, "late")
			client.CloseWrite()
			hears(t, server, "late", io.EOF)
		},
		"ends later": func(t *testing.T, client, server *net.TCPConn, move func()) {
			move()
			client.CloseWrite()
			hears(t, server, "", io.EOF)
			server.CloseWrite()
			hears(t, client, "", io.EOF)
		},
		"a reset later": func(t *testing.T, client, server *net.TCPConn, move func()) {
			move()
			server.SetLinger(0)
			server.Close()
			if _, err := client.Read(make([]byte, 1)); !isReset(err) {
				t.Error("the client sees", err)
			}
		},
		"a reset after an end": func(t *testing.T, client, server *net.TCPConn, move func()) {
			client.CloseWrite()
			hears(t, server, "", io.EOF)
			move()
			client.SetLinger(0)
			client.Close()
			until(t, "the server sees the reset", func() bool { _, err := server.Write([]byte("x")); return err != nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			accepted, done := make(chan *net.TCPConn), make(chan struct{})
			r := newRig(t, func(c *net.TCPConn) {
				accepted <- c
				<-done
			})
			r.start()
			client := r.dial()
			server := <-accepted
			says(t, client, "hello")
			hears(t, server, "hello", nil)
			var results chan error
			end(t, client, server, func() { results = r.handOn(1) })
			close(done)
			client.Close()
			server.Close()
			select {
			case <-results:
			case <-time.After(10 * time.Second):
				t.Error("the connection doesn't end")
			}
		})
	}
}

func says(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// hears wants a text, and then the end where that is asked for.
func hears(t *testing.T, c net.Conn, text string, end error) {
	t.Helper()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("heard %q, not %q: %v", got, text, err)
	}
	if end == nil {
		return
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, end) {
		t.Fatalf("the end is %v, not %v", err, end)
	}
}

// A connection whose workload is being dialled is waited for. One that nobody carries on is reset.
func TestDetachWaitsForDials(t *testing.T) {
	dialling, goOn := make(chan struct{}), make(chan struct{})
	r := newRig(t, echo)
	r.dialer.before = func(ctx context.Context) error {
		close(dialling)
		<-goOn
		return nil
	}
	r.start()
	c := r.dial()
	says(t, c, "hello")
	<-dialling
	loose := make(chan []Detached)
	go func() { loose <- r.proxy.Detach(context.Background()) }()
	until(t, "nobody accepts any more", func() bool { return r.proxy.stopping.Err() != nil })
	close(goOn)
	got := <-loose
	if len(got) != 1 {
		t.Fatalf("%d were let go of", len(got))
	}
	got[0].Reset()
	if _, err := c.Read(make([]byte, 1)); !isReset(err) {
		t.Error("nobody carries it on, and the client sees", err)
	}
}

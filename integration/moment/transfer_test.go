package moment

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const (
	mebibyte = 1 << 20
	transfer = 100 * mebibyte
)

// Large transfers go on where they were, over connections that were made awake (direct) and asleep (held): the client
// stops in the middle until the server sleeps, and somebody asks for sleep again and again while the bytes flow.
func TestTransfers(t *testing.T) {
	s := startServer(t, manual(t, true))
	for _, kind := range []string{"direct", "held"} {
		t.Run("Download/"+kind, func(t *testing.T) { download(t, s, s.connection(t, kind)) })
		t.Run("Upload/"+kind, func(t *testing.T) { upload(t, s, s.connection(t, kind)) })
	}
}

// connection is a new one to the web server: direct, or held by the proxy at first.
func (s *server) connection(t *testing.T, kind string) net.Conn {
	if kind == "held" {
		s.sleep(t)
	} else if _, err := s.world.Wake(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c := s.dial(t, s.world.Dial, "tcp", httpPort)
	if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// harass asks for hibernation while bytes flow, until the returned function is called, which tells how often it was asked
// and how often it succeeded.
func (s *server) harass(t *testing.T) (stop func() (asked, slept int)) {
	ctx, cancel := context.WithCancel(t.Context())
	asked, slept := 0, 0
	var done sync.WaitGroup
	done.Go(func() {
		for s.still(ctx, false, 0) == nil {
			if _, err := s.world.Hibernate(ctx, id); err == nil {
				slept++
			}
			asked++
		}
	})
	return func() (int, int) {
		cancel()
		done.Wait()
		return asked, slept
	}
}

// rest puts the server to sleep once no more bytes flow. A segment that was lost just before would be sent again by the
// sleeper only, so there is time for that.
func (s *server) rest(t *testing.T) *shimv1.StatusResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	if err := s.still(ctx, true, time.Second); err != nil {
		t.Fatal("the buffers between don't get full:", err)
	}
	return s.sleep(t)
}

// still waits for a time in which no packets were counted, or in which some were.
func (s *server) still(ctx context.Context, want bool, length time.Duration) error {
	client, done, err := s.world.Shim(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	var since time.Time
	var packets uint64
	return until(ctx, func() (bool, error) {
		a, err := client.Activity(ctx, &shimv1.ActivityRequest{})
		moved := a.GetPackets() != packets || since.IsZero()
		if moved {
			first := since.IsZero()
			packets, since = a.GetPackets(), time.Now()
			return !want && !first, err
		}
		return want && time.Since(since) >= length, err
	})
}

func download(t *testing.T, s *server, c net.Conn) {
	say(t, c, fmt.Sprintf("GET /bytes?n=%d HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", transfer))
	r, err := http.ReadResponse(bufio.NewReaderSize(c, 64<<10), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	check := &repeats{}
	part := func(n int64) {
		t.Helper()
		if _, err := io.CopyN(check, r.Body, n); err != nil {
			t.Fatalf("after %d bytes: %v", check.n, err)
		}
	}
	part(transfer / 5)
	before := s.rest(t) // once the buffers between are full the server can say no more
	part(transfer / 5)
	s.wokenBy(t, before, "packet")
	stop := s.harass(t)
	part(transfer / 5 * 2)
	asked, slept := stop()
	t.Logf("hibernation asked for %d times while bytes came; it slept %d times", asked, slept)
	s.rest(t)
	part(transfer - check.n)
	if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
}

// repeats looks that what is written to it is the test server's pattern: bytes counting up.
type repeats struct{ n int64 }

func (r *repeats) Write(p []byte) (int, error) {
	for i, b := range p {
		if b != byte(r.n) {
			return i, fmt.Errorf("byte %d is %d", r.n, b)
		}
		r.n++
	}
	return len(p), nil
}

func upload(t *testing.T, s *server, c net.Conn) {
	sum := sha256.New()
	say(t, c, fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", transfer))
	part := func(n int64) {
		t.Helper()
		if _, err := io.CopyN(io.MultiWriter(c, sum), source{}, n); err != nil {
			t.Fatal(err)
		}
	}
	part(transfer / 5)
	before := s.rest(t)
	part(transfer / 5)
	s.wokenBy(t, before, "packet")
	stop := s.harass(t)
	part(transfer / 5 * 2)
	asked, slept := stop()
	t.Logf("hibernation asked for %d times while bytes went; it slept %d times", asked, slept)
	s.rest(t)
	part(transfer / 5)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var got struct {
		Bytes  int64
		SHA256 string
	}
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sum.Sum(nil)); got.Bytes != transfer || got.SHA256 != want {
		t.Errorf("the server got %d bytes, %s; want %d, %s", got.Bytes, got.SHA256, transfer, want)
	}
}

// source is random bytes without end.
type source struct{}

var noise = func() []byte {
	b := make([]byte, mebibyte+7919)
	for i := range b {
		b[i] = byte(rand.Int())
	}
	return b
}()

func (source) Read(p []byte) (int, error) { return copy(p, noise[rand.IntN(len(noise)/2):]), nil }

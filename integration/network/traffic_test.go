package network

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const (
	mebibyte = 1 << 20
	unit     = 128 << 10 // what a transfer moves between two looks at the tide
	askers   = 4
)

// tide lets clients talk while it is high; at ebb, all have just fallen silent.
type tide struct {
	level sync.RWMutex
	over  atomic.Bool
}

// during does one thing at high tide; false when there is no more to be done.
func (t *tide) during(do func() error) (bool, error) {
	t.level.RLock()
	defer t.level.RUnlock()
	if t.over.Load() {
		return false, nil
	}
	return true, do()
}

// turn has tides come and go until ctx ends: ebb is at times too short to fall asleep in, and at times long enough.
func (t *tide) turn(ctx context.Context) {
	for ctx.Err() == nil {
		sleepFor(ctx, 20*time.Millisecond, 200*time.Millisecond)
		t.level.Lock()
		sleepFor(ctx, 20*time.Millisecond, 500*time.Millisecond)
		t.level.Unlock()
	}
}

func sleepFor(ctx context.Context, least, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(least + time.Duration(rand.Int64N(int64(most-least)))):
	}
}

// A large download, a large upload and many small requests go on below a server that is asked to sleep all the while: nothing is
// refused or reset, each byte arrives, and each request is carried out once.
func TestHibernationUnderTraffic(t *testing.T) {
	size, requests, sleeps := atSize(48, 1024)*mebibyte, atSize(300, 5000), atSize(4, 40)
	s := start(t, true, nil)
	ctx, cancel := context.WithTimeout(t.Context(), atSize(4*time.Minute, 25*time.Minute))
	defer cancel()
	var tide tide
	var beside, clients sync.WaitGroup
	ended, end := context.WithCancel(ctx)
	defer end()
	beside.Go(func() { tide.turn(ended) })
	var h harasser
	beside.Go(func() { h.ask(ended, s, t) })

	errs := make(chan error, askers+2)
	clients.Go(func() { errs <- s.download(&tide, size) })
	clients.Go(func() { errs <- s.upload(&tide, size) })
	var asked atomic.Int64
	for range askers {
		clients.Go(func() {
			errs <- s.requests(&tide, &asked, func() bool { return asked.Load() >= int64(requests) && h.slept.Load() >= int64(sleeps) })
		})
	}
	for range cap(errs) {
		select {
		case err := <-errs:
			if err != nil {
				t.Error(err)
				tide.over.Store(true)
			}
		case <-ctx.Done():
			t.Fatalf("not done in time: %d requests, %d sleeps of %d attempts", asked.Load(), h.slept.Load(), h.asked.Load())
		}
	}
	end()
	beside.Wait()
	clients.Wait()
	t.Logf("%d MiB each way, %d requests; slept %d times of %d attempts, undone %d times", size/mebibyte, asked.Load(),
		h.slept.Load(), h.asked.Load(), h.undone.Load())
	if got := strings.TrimSpace(string(s.get("/counter"))); got != fmt.Sprint(asked.Load()) {
		t.Errorf("the server has carried out %s requests of %d", got, asked.Load())
	}
}

// harasser asks for sleep, again and again.
type harasser struct{ asked, slept, undone atomic.Int64 }

func (h *harasser) ask(ctx context.Context, s *server, t *testing.T) {
	client, done, err := s.world.Shim(ctx, id)
	if err != nil {
		t.Error(err)
		return
	}
	defer done()
	for ctx.Err() == nil {
		_, err := client.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "request", Manual: true})
		h.asked.Add(1)
		switch {
		case err == nil:
			h.slept.Add(1)
		case status.Code(err) == codes.Aborted:
			h.undone.Add(1)
		case ctx.Err() == nil && status.Code(err) != codes.FailedPrecondition: // it is not awake yet
			t.Error("hibernate:", err)
		}
		sleepFor(ctx, time.Millisecond, 20*time.Millisecond)
	}
}

// pattern looks that what is written to it is the test server's: bytes counting up.
type pattern struct{ n int64 }

func (p *pattern) Write(b []byte) (int, error) {
	for i, c := range b {
		if c != byte(p.n) {
			return i, fmt.Errorf("byte %d is %d", p.n, c)
		}
		p.n++
	}
	return len(b), nil
}

func (s *server) download(tide *tide, size int) error {
	c, err := s.transfer(fmt.Sprintf("GET /bytes?n=%d HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", size))
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer c.Close()
	r, err := http.ReadResponse(bufio.NewReaderSize(c, 64<<10), nil)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer r.Body.Close()
	var check pattern
	for check.n < int64(size) {
		on, err := tide.during(func() error {
			_, err := io.CopyN(&check, r.Body, min(unit, int64(size)-check.n))
			return err
		})
		if err != nil || !on {
			return wrap(err, "download, after %d bytes", check.n)
		}
	}
	if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("download: the end is %d bytes, %w", n, err)
	}
	return nil
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

func (s *server) upload(tide *tide, size int) error {
	c, err := s.transfer(fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", size))
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	defer c.Close()
	noise := rand.NewChaCha8([32]byte{1})
	sum := sha256.New()
	for sent := 0; sent < size; {
		n := min(unit, size-sent)
		on, err := tide.during(func() error {
			_, err := io.CopyN(io.MultiWriter(c, sum), noise, int64(n))
			return err
		})
		if err != nil || !on {
			return wrap(err, "upload, after %d bytes", sent)
		}
		sent += n
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	defer r.Body.Close()
	var got guest
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if want := fmt.Sprintf("%x", sum.Sum(nil)); got.Bytes != int64(size) || got.SHA256 != want {
		return fmt.Errorf("the server got %d bytes, %s; want %d, %s", got.Bytes, got.SHA256, size, want)
	}
	return nil
}

// transfer is a connection with a request that goes on for long.
func (s *server) transfer(request string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.world.Dial(ctx, "tcp", s.address(httpPort))
	if err == nil {
		_, err = io.WriteString(c, request)
	}
	return c, err
}

// requests asks, on new connections and on old ones, until it is enough.
func (s *server) requests(tide *tide, asked *atomic.Int64, enough func() bool) error {
	web := s.world.HTTP()
	web.Transport.(*http.Transport).DisableKeepAlives = false
	defer web.CloseIdleConnections()
	for !enough() {
		on, err := tide.during(func() error {
			r, err := web.Post("http://"+s.address(httpPort)+"/counter", "text/plain", nil)
			if err != nil {
				return err
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK {
				return errors.Join(fmt.Errorf("status %s", r.Status), err)
			}
			asked.Add(1)
			return nil
		})
		if err != nil || !on {
			return wrap(err, "request %d", asked.Load())
		}
		if rand.IntN(2) == 0 {
			web.CloseIdleConnections()
		}
		sleepFor(context.Background(), time.Millisecond, 10*time.Millisecond)
	}
	return nil
}

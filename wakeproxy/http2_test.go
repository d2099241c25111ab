package wakeproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// checkHealth asks as kubelet does.
func checkHealth(t *testing.T, at, agent string) (health.HealthCheckResponse_ServingStatus, string) {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(agent))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var head metadata.MD
	answer, err := health.NewHealthClient(c).Check(ctx, &health.HealthCheckRequest{Service: "liveness"}, grpc.Header(&head))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus(), strings.Join(head.Get(StateHeader), ",")
}

// grpcRig takes grpc-go's client of that user agent for a probe.
func grpcRig(t *testing.T, state string, well bool, handle func(*net.TCPConn)) (*rig, *fakeProbes) {
	r, p := lookRig(t, long, state, well, handle)
	p.probe = func(q Question) bool { return q.GRPC() && strings.HasPrefix(q.UserAgent, "kube-probe/") }
	return r, p
}

// A question by gRPC's health protocol is answered by the state, and wakes nothing.
func TestHealthByGRPCIsAnsweredWithoutAWake(t *testing.T) {
	for state, want := range map[string]health.HealthCheckResponse_ServingStatus{
		"asleep": health.HealthCheckResponse_SERVING, "blocked": health.HealthCheckResponse_NOT_SERVING,
	} {
		r, _ := grpcRig(t, state, want == health.HealthCheckResponse_SERVING, echo)
		if got, told := checkHealth(t, r.front, "kube-probe/1.36"); got != want || told != state {
			t.Errorf("%s: it is %s, %q", state, got, told)
		}
		if n := r.waker.calls.Load(); n != 0 {
			t.Errorf("%s: %d wakes", state, n)
		}
	}
}

// servesHTTP2 has r's workload serve gRPC's health protocol and other requests; its client's every frame must be in order.
func servesHTTP2(t *testing.T, r *rig) {
	t.Helper()
	server := &http.Server{Protocols: onlyHTTP2(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, byte(health.HealthCheckResponse_SERVICE_UNKNOWN)})
			w.Header().Set("Grpc-Status", "0")
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s: %d bytes, %v", r.Method, r.URL.Path, n, err)
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.dialer.addr = ln.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ln) }()
	t.Cleanup(func() { server.Close(); <-done })
}

func onlyHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// All else by HTTP/2 wakes, whether its client waits for the server's settings or not, and is passed on whole.
func TestWhatIsNoHealthCheckWakes(t *testing.T) {
	t.Run("of somebody else", func(t *testing.T) {
		r, _ := grpcRig(t, "asleep", true, echo)
		servesHTTP2(t, r)
		if got, told := checkHealth(t, r.front, "somebody/1"); got != health.HealthCheckResponse_SERVICE_UNKNOWN || told != "" {
			t.Errorf("it is %s, %q", got, told)
		}
		if n := r.waker.calls.Load(); n != 1 {
			t.Errorf("%d wakes", n)
		}
	})
	for name, begin := range map[string]time.Duration{"at once": 0, "after it has seen settings": 10 * settingsWait} {
		t.Run(name, func(t *testing.T) {
			r, _ := grpcRig(t, "asleep", true, echo)
			servesHTTP2(t, r)
			h2 := &http.Transport{Protocols: onlyHTTP2(), MaxConnsPerHost: 1, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return &slowStart{Conn: r.dial(), wait: begin}, nil
			}}
			defer h2.CloseIdleConnections()
			var all sync.WaitGroup
			for i := range 5 {
				all.Go(func() {
					body := bytes.Repeat([]byte{'x'}, 100_000*i)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("http://pod/%d", i), bytes.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					answer, err := h2.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					defer answer.Body.Close()
					want := fmt.Sprintf("PUT /%d: %d bytes, <nil>", i, len(body))
					if got, err := io.ReadAll(answer.Body); err != nil || string(got) != want {
						t.Errorf("%q, %v, want %q", got, err, want)
					}
				})
			}
			all.Wait()
			if n := r.waker.calls.Load(); n != 1 {
				t.Errorf("%d wakes", n)
			}
		})
	}
}

// slowStart lets pass so much time between a client's settings and what it says next.
type slowStart struct {
	net.Conn
	wait   time.Duration
	mu     sync.Mutex
	writes int
}

func (c *slowStart) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes++; c.writes == 2 {
		time.Sleep(c.wait)
	}
	return c.Conn.Write(p)
}

// A client that never acknowledges, or says what can't be followed, harms nobody.
func TestBrokenHTTP2(t *testing.T) {
	for name, text := range map[string]string{
		"a frame that is too long": http2.ClientPreface + "\xff\xff\xff\x04\x00\x00\x00\x00\x00",
		"headers that can't be":    http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x02\x01\x05\x00\x00\x00\x01\xff\xff",
		"no settings first":        http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := lookRig(t, moment, "asleep", true, echo)
			c := r.dial()
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(text))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
				t.Errorf("%q came back, %v", got[:n], err)
			}
		})
	}
}

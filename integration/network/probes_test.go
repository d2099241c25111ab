package network

import (
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const (
	ofKubelet = "GET /nowhere HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
	ofOthers  = "GET /nowhere HTTP/1.1\r\nHost: pod\r\nUser-Agent: Prometheus/3.0\r\nConnection: close\r\n\r\n"
)

// asks says a text to a port and returns all that is answered.
func (f *forwarded) asks(dial func(context.Context, string, string) (net.Conn, error), port, text string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	c, err := dial(ctx, "tcp", net.JoinHostPort(f.pod.IP, port))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if text == "" { // a probe of TCP
		return ""
	}
	if err := c.SetDeadline(time.Now().Add(longWait)); err != nil {
		f.t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		f.t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		f.t.Fatalf("after %q: %v", answer, err)
	}
	return string(answer)
}

// asleepThrough wants questions to be answered while it sleeps, and it to sleep on. On a busy machine a question may come later
// than one is looked at for, and wakes: then it is asked again.
func (f *forwarded) asleepThrough(ask func() bool) {
	f.t.Helper()
	for range 10 {
		f.sleep()
		before := f.status()
		answered := ask()
		time.Sleep(300 * time.Millisecond) // for what should not happen
		if s := f.status(); answered && s.GetState() == "asleep" && s.GetWakes() == before.GetWakes() {
			return
		}
	}
	f.t.Fatal("it is woken, or nobody answers for it")
}

// answersFor says whether an answer is one for a workload that is away.
func answersFor(state, answer string) bool {
	status := "200 OK"
	if state == "blocked" {
		status = "503 Service Unavailable"
	}
	return strings.HasPrefix(answer, "HTTP/1.1 "+status+"\r\n") && strings.Contains(answer, "\r\nHibernate-State: "+state+"\r\n")
}

// wakes wants one more wake than before, by a connection.
func (f *forwarded) wakes(before *shimv1.StatusResponse) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	s, err := f.world.WaitState(ctx, forwardedID, "awake")
	if err != nil {
		f.t.Fatal(err)
	}
	if s.GetWakes() != before.GetWakes()+1 || s.GetLastWake().GetReason() != "connection" || s.GetLastWake().GetOutcome() != "restored" {
		f.t.Fatalf("%d wakes, before %d; the last %s by %s", s.GetWakes(), before.GetWakes(), s.GetLastWake().GetOutcome(), s.GetLastWake().GetReason())
	}
}

// Kubelet's probes come from the node. A sleeper's are answered for it, and say so; all else from the node wakes it, and so does
// whoever elsewhere says that he is kubelet.
func TestKubeletsProbesWakeNothing(t *testing.T) {
	f := startPod(t, true, map[string]string{"mode": `"manual"`, "probes": `["kubelet"]`}, "-greet", ":7001")
	if got := f.asks(f.world.DialNode, "8080", ofKubelet); !strings.HasPrefix(got, "HTTP/1.1 404") {
		t.Fatalf("awake it answers %q", got)
	}
	f.asleepThrough(func() bool { return answersFor("asleep", f.asks(f.world.DialNode, "8080", ofKubelet)) })
	f.asleepThrough(func() bool { f.asks(f.world.DialNode, "8080", ""); f.asks(f.world.DialNode, "7001", ""); return true })
	for who, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"from elsewhere": f.world.Dial, "of others on the node": f.world.DialNode} {
		f.sleep()
		before, text := f.status(), ofKubelet
		if who != "from elsewhere" {
			text = ofOthers
		}
		if got := f.asks(dial, "8080", text); !strings.HasPrefix(got, "HTTP/1.1 404") {
			t.Errorf("%s: %q", who, got)
		}
		f.wakes(before)
	}
	f.sleep()
	before := f.status()
	f.speaksFirst()
	f.wakes(before)
}

// checksHealth asks by gRPC, as kubelet does, and returns what it is told.
func (f *forwarded) checksHealth(agent string, timeout time.Duration) (health.HealthCheckResponse_ServingStatus, error) {
	f.t.Helper()
	c, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(f.pod.IP, "8080"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(agent),
		grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return f.world.DialNode(ctx, "tcp", at) }))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), timeout)
	defer cancel()
	answer, err := health.NewHealthClient(c).Check(ctx, &health.HealthCheckRequest{})
	return answer.GetStatus(), err
}

// kubelet's gRPC client names itself, and then its library.
const kubeletByGRPC = "kube-probe/1.36"

// So are those by gRPC; another client's question wakes.
func TestKubeletsProbesByGRPCWakeNothing(t *testing.T) {
	f := startPod(t, true, map[string]string{"mode": `"manual"`, "probes": `["kubelet"]`})
	f.asleepThrough(func() bool {
		status, err := f.checksHealth(kubeletByGRPC, longWait)
		if err != nil {
			t.Error(err)
		}
		return status == health.HealthCheckResponse_SERVING
	})
	f.sleep()
	before := f.status()
	if status, err := f.checksHealth("somebody/1", longWait); err != nil || status != health.HealthCheckResponse_SERVING { // by the server itself
		t.Errorf("somebody else is told %s, %v", status, err)
	}
	f.wakes(before)
}

// speaksFirst wants a server that waits for nothing to be woken for a client that says nothing.
func (f *forwarded) speaksFirst() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	c, err := f.world.DialNode(ctx, "tcp", net.JoinHostPort(f.pod.IP, "7001"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(longWait)); err != nil {
		f.t.Fatal(err)
	}
	f.says(c, "", "220 hello\n")
}

// Probes of others are known by the port, the path and where they come from.
func TestDeclaredProbesWakeNothing(t *testing.T) {
	f := startPod(t, true, map[string]string{"mode": `"manual"`, "probes": `["8080/nowhere from 0.0.0.0/0", "7001 from 0.0.0.0/0"]`})
	f.asleepThrough(func() bool { return answersFor("asleep", f.asks(f.world.Dial, "8080", ofOthers)) })
	f.asleepThrough(func() bool { f.asks(f.world.Dial, "7001", ""); return true })
	f.sleep()
	before := f.status()
	if got := f.asks(f.world.Dial, "8080", strings.Replace(ofOthers, "/nowhere", "/else", 1)); !strings.HasPrefix(got, "HTTP/1.1 404") {
		t.Errorf("another path: %q", got)
	}
	f.wakes(before)
}

// Awake, probes don't keep it from sleep, however often they come; a user who comes from where they do does, and isn't cut off.
func TestAwakeProbesAreNoUse(t *testing.T) {
	f := startPod(t, true, map[string]string{
		"mode": `"auto"`, "probes": `["kubelet"]`, "idle-timeout": `"2s"`, "min-awake": `"0s"`, "poll-interval": `"100ms"`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	probes.Go(func() {
		for probing.Err() == nil {
			if c, err := f.world.DialNode(ctx, "tcp", net.JoinHostPort(f.pod.IP, "8080")); err == nil {
				_, err = io.WriteString(c, ofKubelet)
				_, _ = io.Copy(io.Discard, c)
				if c.Close(); err != nil {
					t.Errorf("a probe: %v", err)
				}
			}
			time.Sleep(time.Second) // as often as kubelet can: more would be use, by the processor time that answers take
		}
	})
	defer probes.Wait()
	defer stop()
	s, err := f.world.WaitState(ctx, forwardedID, "asleep")
	if err != nil {
		t.Fatalf("under probes: %s, %v; %v", s.GetState(), err, f.status().GetBlockers())
	}
	if s := f.status(); s.GetWakes() > 0 {
		t.Errorf("%d wakes", s.GetWakes())
	}
	for range 5 { // a busy machine may need more than one try to be busy with it all the time
		if f.inUseFor(4*time.Second, time.Second) {
			return
		}
	}
	t.Error("it was never in use for so long")
}

// inUseFor has a user ask for so long, wakes it if need be, and wants it to stay awake; false when a pause became too long.
func (f *forwarded) inUseFor(long, pause time.Duration) bool {
	f.t.Helper()
	var wakes uint64
	var last time.Time
	for begin := time.Now(); time.Since(begin) < long; last = time.Now() {
		if got := f.asks(f.world.DialNode, "8080", ofOthers); !strings.HasPrefix(got, "HTTP/1.1 404") {
			f.t.Fatalf("a user's: %q", got)
		}
		s := f.status()
		switch {
		case last.IsZero():
			wakes = s.GetWakes()
		case time.Since(last) > pause:
			return false
		case s.GetState() != "awake" || s.GetWakes() != wakes:
			f.t.Fatalf("in use it is %s, after %d wakes, %d before", s.GetState(), s.GetWakes(), wakes)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return true
}

// A workload that can't be restored is not well, and says so to probes.
func TestProbesOfABlockedWorkload(t *testing.T) {
	f := startPod(t, true, map[string]string{"mode": `"manual"`, "probes": `["kubelet"]`, "on-restore-failure": `"block"`})
	f.sleep()
	var got string
	err := filepath.WalkDir(f.world.DataDir(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "pages.img") {
			return os.Truncate(path, 4096)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got = f.asks(f.world.DialNode, "8080", ofOthers); !strings.HasPrefix(got, "HTTP/1.1 503") {
		t.Errorf("a request that wakes in vain: %q", got)
	}
	for range 10 { // one that comes late is told the same, but for the header
		if got = f.asks(f.world.DialNode, "8080", ofKubelet); answersFor("blocked", got) {
			break
		}
	}
	if status, err := f.checksHealth(kubeletByGRPC, longWait); err != nil || status != health.HealthCheckResponse_NOT_SERVING {
		t.Errorf("a probe by gRPC: %s, %v", status, err)
	}
	if !answersFor("blocked", got) || f.status().GetState() != "blocked" {
		t.Errorf("a probe: %q, and it is %s", got, f.status().GetState())
	}
}

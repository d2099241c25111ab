package moment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	id         = "server"
	echoPort   = "7000"
	longLived  = 8 // connections that stay open from round to round
	settleTime = 10 * time.Second
)

// run is a test server, its clients, and all that is known of what they did.
type run struct {
	*server
	pod    harness.Pod
	shim   shimv1.TTRPCShimClient
	ledger *ledger
	player *player

	mu      sync.Mutex // guards the fields below
	streams []*stream  // open
	ended   []*stream
	dialled int
	fresh   sync.WaitGroup // connections under way
	state   string
}

// newRun starts everything: the server, long-lived connections, the watch, and the player that sends at the steps.
func newRun(t *testing.T, w *harness.World) *run {
	r := &run{server: startServer(t, w), ledger: newLedger()}
	var err error
	if r.pod, err = w.NewPod(t.Context(), "neighbour"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // open connections keep the namespace
		r.hangUp()
		w.RemovePod(context.Background(), r.pod)
	})
	client, closeShim, err := w.Shim(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeShim)
	r.shim = client
	r.watch(t)
	record, err := w.Record(id)
	if err != nil {
		t.Fatal(err)
	}
	journal, err := openJournal(filepath.Join(w.Path(record.Bundle), "hibernate"))
	if err != nil {
		t.Fatal(err)
	}
	r.player = newPlayer(r, journal)
	t.Cleanup(r.player.close)
	for range longLived {
		if err := r.connect(); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// watch hears of each change of the workload's state, and of each transition.
func (r *run) watch(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	events, err := r.shim.Watch(ctx, &shimv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for {
			e, err := events.Recv()
			if err != nil {
				return
			}
			if tr := e.GetTransition(); tr != nil && tr.GetOutcome() != "" {
				r.ledger.transition(tr)
			}
			r.mu.Lock()
			r.state = e.GetState()
			r.mu.Unlock()
		}
	})
}

// dial connects from the client, the node or another pod.
func (r *run) dial() (*stream, error) {
	r.mu.Lock()
	r.dialled++
	n := r.dialled
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	address := net.JoinHostPort(r.ip, echoPort)
	var conn net.Conn
	var err error
	from := []string{"client", "client", "node", "pod"}[n%4]
	r.ledger.sent(time.Now())
	switch from {
	case "client":
		conn, err = r.world.Dial(ctx, "tcp", address)
	case "node":
		conn, err = r.world.DialNode(ctx, "tcp", address)
	case "pod":
		conn, err = r.world.DialPod(ctx, r.pod.Path, "tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("new connection %d from the %s: %w", n, from, err)
	}
	return newStream(fmt.Sprintf("%s-%d", from, n), conn), nil
}

// connect makes a connection and talks over it at once.
func (r *run) connect() error {
	s, err := r.dial()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.streams = append(r.streams, s)
	r.mu.Unlock()
	r.ledger.sent(s.send())
	return nil
}

// send sends a line on one of the open connections.
func (r *run) send() {
	r.mu.Lock()
	s := r.streams[rand.IntN(len(r.streams))]
	r.mu.Unlock()
	r.ledger.sent(s.send())
}

// connectLater makes a connection while the caller goes on: its handshake may have to wait for a wake.
func (r *run) connectLater(t *testing.T) {
	r.fresh.Go(func() {
		if err := r.connect(); err != nil {
			t.Error(err)
		}
	})
}

// round is one hibernation with somebody talking at one of its steps, and the wake that follows, with everybody talking.
func (r *run) round(ctx context.Context, t *testing.T, n int) {
	p := plan{t: t, fresh: rand.IntN(3) == 0}
	if at := n % len(descent); descent[at] != "undo" { // each that somebody ends is undone; that one sleeps
		p.target = descent[at]
	}
	if rand.IntN(3) > 0 {
		pass(ctx, 45*time.Millisecond) // an acknowledgement that a kernel delays would undo it
	}
	r.player.play(p)
	_, err := r.shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "request", Manual: true})
	switch status.Code(err) {
	case codes.OK:
		r.rouse(ctx, t, n, p)
	case codes.Aborted:
	default:
		t.Error("hibernate:", err)
	}
	r.settle(ctx, t)
}

// rouse wakes what sleeps, in one of four ways, unless somebody spoke already.
func (r *run) rouse(ctx context.Context, t *testing.T, n int, p plan) {
	if r.player.spoke() {
		return
	}
	var err error
	switch n % 4 {
	case 0:
		_, err = r.shim.Wake(ctx, &shimv1.WakeRequest{Reason: "request"})
	case 1:
		r.send()
	case 2:
		r.connectLater(t)
	case 3:
		err = r.datagram(ctx)
	}
	if err != nil {
		t.Error("wake:", err)
	}
}

// settle waits until all is said and answered and the workload is awake, and ends connections that are too many.
func (r *run) settle(ctx context.Context, t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, errUnsettled)
	defer cancel()
	r.player.rest()
	r.fresh.Wait()
	err := until(ctx, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, s := range r.streams {
			if ok, err := s.settled(); !ok {
				return false, err
			}
		}
		return r.state == "awake", nil
	})
	if err != nil {
		t.Error(err)
		r.unsettled(t)
		return
	}
	for len(r.streams) > longLived {
		r.endOne(t)
	}
}

var errUnsettled = errors.New("somebody still waits for an answer")

// unsettled tells who waits.
func (r *run) unsettled(t *testing.T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("state %s", r.state)
	for _, s := range r.streams {
		s.mu.Lock()
		if len(s.pending) > 0 {
			t.Logf("%s %v: %d bytes not echoed, from %.60q", s.name, s.conn.LocalAddr(), len(s.pending), s.pending)
		}
		s.mu.Unlock()
	}
}

func (r *run) endOne(t *testing.T) {
	r.mu.Lock()
	i := rand.IntN(len(r.streams))
	s := r.streams[i]
	r.streams = append(r.streams[:i], r.streams[i+1:]...)
	r.ended = append(r.ended, s)
	r.mu.Unlock()
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// hangUp closes what a failed test left open.
func (r *run) hangUp() {
	r.fresh.Wait()
	for _, s := range r.streams {
		s.conn.Close()
		s.read.Wait()
	}
}

// finish ends all connections and compares the accounts of both sides.
func (r *run) finish(t *testing.T) {
	r.player.close()
	for len(r.streams) > 0 {
		r.endOne(t)
	}
	r.report(t)
	for _, f := range r.ledger.failures() {
		t.Error(f)
	}
	total := r.total(t)
	theirs := map[account]int{}
	for _, c := range total.Connections {
		if c.Bytes > 0 { // else it only looked whether the port is open
			theirs[c]++
		}
	}
	var sum account
	var waits []time.Duration
	for _, s := range r.ended {
		waits = append(waits, s.waits...)
		a := s.account()
		sum.Bytes += a.Bytes
		sum.Lines += a.Lines
		if theirs[a]--; theirs[a] < 0 {
			t.Errorf("%s sent %d bytes in %d lines; no connection of the server's has got just that", s.name, a.Bytes, a.Lines)
		}
	}
	if sum.Bytes != total.Bytes || sum.Lines != total.Lines {
		t.Errorf("sent %d bytes, %d lines; the server got %d, %d", sum.Bytes, sum.Lines, total.Bytes, total.Lines)
	}
	slices.Sort(waits)
	t.Logf("%d bytes in %d lines on %d connections: echoed in order, and counted alike by the server", sum.Bytes, sum.Lines, len(r.ended))
	t.Logf("answered after %v (median), %v (99 of 100), %v (at most)", waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1])
}

// total is the server's account of its line echo.
type total struct {
	Bytes       int64              `json:"bytes"`
	Lines       int64              `json:"lines"`
	Connections map[string]account `json:"connections"`
}

func (r *run) total(t *testing.T) (all total) {
	if err := json.Unmarshal(r.get(t, "/echo/total"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// server is a test server that runs.
type server struct {
	world *harness.World
	ip    string
	http  *http.Client
}

func startServer(t *testing.T, w *harness.World) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.Run(ctx, harness.Container{ID: id, Image: "testserver", CNI: true, Detach: true}); err != nil {
		t.Fatal(err)
	}
	ip, err := w.IP(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitPort(ctx, net.JoinHostPort(ip, echoPort)); err != nil {
		t.Fatal(err)
	}
	return &server{world: w, ip: ip, http: w.HTTP()}
}

func (s *server) url(path string) string { return "http://" + net.JoinHostPort(s.ip, "8080") + path }

// get is one exchange on a connection of its own.
func (s *server) get(t *testing.T, path string) []byte {
	t.Helper()
	response, err := s.http.Get(s.url(path))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %s, %v", path, response.Status, body, err)
	}
	return body
}

// datagram sends one to the UDP echo and waits for the answer. One datagram only: none may be lost.
func (s *server) datagram(ctx context.Context) error {
	conn, err := s.world.Dial(ctx, "udp", net.JoinHostPort(s.ip, "7002"))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	question := fmt.Sprintf("datagram %d", rand.Int())
	if _, err := io.WriteString(conn, question); err != nil {
		return err
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err == nil && string(answer[:n]) != question {
		err = fmt.Errorf("the answer to %q is %q", question, answer[:n])
	}
	return err
}

func pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

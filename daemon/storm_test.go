package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

const (
	mib   = 1 << 20
	image = 24 * mib
	taken = 72 * mib // by a workload that is awake
)

// ward counts what the workloads of a test take, and in which order they woke.
type ward struct {
	sync.Mutex
	total, used, most int // memory
	waking, together  int // wakes at once, now and at most
	order             []string
	gate              chan struct{} // closed when wakes may end
}

func (w *ward) available() (uint64, error) {
	w.Lock()
	defer w.Unlock()
	return uint64(max(w.total-w.used, 0)), nil
}

// sleeper starts a shim whose workload sleeps, and is idle as soon as it wakes.
func (w *ward) sleeper(n *node, namespace, id string) (shim *shimtest.Shim, address string) {
	shim = shimtest.Start(n.t, namespace, id)
	shim.Update(func(s *shimv1.StatusResponse, a *shimv1.ActivityResponse) {
		s.ImageBytes, a.MemoryBytes, a.MinAwakeMs = image, taken, 0
	})
	shim.State("asleep")
	shim.OnWake(func(context.Context) error {
		w.Lock()
		w.waking++
		w.together = max(w.together, w.waking)
		w.used += taken
		w.most = max(w.most, w.used)
		w.order = append(w.order, namespace+"/"+id)
		w.Unlock()
		<-w.gate
		w.Lock()
		defer w.Unlock()
		w.waking--
		return nil
	})
	shim.OnHibernate(func(context.Context) error {
		w.Lock()
		defer w.Unlock()
		w.used -= taken
		return nil
	})
	address, file := listener(n.t)
	n.register(shim, map[uint16]*os.File{80: file})
	return shim, address
}

// TestStorm: bursts of connections to 300 sleepers, for which the node has neither the processors nor the memory at once. All
// are answered, no more wake at the same time than may, the memory is never more than there is, and three workloads of another
// namespace, whose clients come last, don't wait for the storm's end.
func TestStorm(t *testing.T) {
	const storm, quiet, burst, wakes, fit, spare = 297, 3, 4, 4, 100, 500 * mib
	w := &ward{total: fit*taken + spare + taken/2, gate: make(chan struct{})}
	n := newNode(t)
	n.change = func(o *daemon.Options) {
		o.Wakes = admission.Limits{Wakes: wakes, Queue: 1000, Spare: spare}
		o.Available = w.available
		o.Limits = wakeproxy.Limits{HoldFor: 2 * time.Minute}
		o.Concurrent = 8
	}
	n.run()
	var clients sync.WaitGroup
	connect := func(namespace string, sleepers int) {
		for i := range sleepers {
			_, address := w.sleeper(n, namespace, fmt.Sprint(i))
			for range burst {
				clients.Go(func() {
					if err := patientTrip(address); err != nil {
						t.Errorf("%s/%d: %v", namespace, i, err)
					}
				})
			}
		}
	}
	connect("storm", storm)
	waiting(t, n, storm-wakes)
	connect("quiet", quiet)
	waiting(t, n, storm+quiet-wakes)
	if got := n.list()["200"]; got.GetWakeWaits() == "" {
		t.Errorf("nothing tells that it waits: %v", got)
	}
	close(w.gate)
	clients.Wait()
	w.Lock()
	defer w.Unlock()
	if len(w.order) < storm+quiet {
		t.Errorf("%d of %d woke", len(w.order), storm+quiet)
	}
	if w.together > wakes {
		t.Errorf("%d wakes at once, of %d", w.together, wakes)
	}
	if w.most > w.total-spare {
		t.Errorf("%d MiB were taken, of %d", w.most/mib, (w.total-spare)/mib)
	}
	for i := range quiet {
		// They are admitted among the first ten (admission's TestFairness); when each then begins is the scheduler's.
		if place := slices.Index(w.order, fmt.Sprintf("quiet/%d", i)); place > storm/4 {
			t.Errorf("quiet/%d was number %d to wake", i, place)
		}
	}
	t.Logf("%d workloads woke, %d at once at most, %d MiB of %d at most", len(w.order), w.together, w.most/mib, (w.total-spare)/mib)
}

// patientTrip is roundTrip for a client that can wait.
func patientTrip(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Minute))
	return speak(conn)
}

func waiting(t *testing.T, n *node, want int) {
	t.Helper()
	metric(t, n, fmt.Sprintf("hibernate_wakes_waiting %d", want))
}

// TestRoomIsMadeByTheLongestIdle: what is idle longest sleeps first, and what is of a manual mode, in its first minute awake, or
// has work to do doesn't.
func TestRoomIsMadeByTheLongestIdle(t *testing.T) {
	w := &ward{total: 6 * taken, gate: make(chan struct{})}
	close(w.gate)
	n := newNode(t)
	n.change = func(o *daemon.Options) { o.Available = w.available }
	n.run()
	awake := map[string]*shimtest.Shim{}
	begin := func(id string, change func(*shimv1.ActivityResponse)) {
		shim, _ := w.sleeper(n, "default", id)
		w.used += taken // before anybody asks
		shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { change(a) })
		shim.State("awake")
		awake[id] = shim
		eventually(t, id+" is judged", func() bool { return n.list()[id].GetStatus().GetMemoryBytes() == taken })
	}
	nothing := func(*shimv1.ActivityResponse) {}
	begin("manual", func(a *shimv1.ActivityResponse) { a.Mode = "manual" })
	begin("fresh", func(a *shimv1.ActivityResponse) { a.MinAwakeMs = 3_600_000 })
	begin("exec", func(a *shimv1.ActivityResponse) { a.Execs = 1 })
	begin("first", nothing)
	begin("second", nothing)
	begin("third", nothing)
	for i, want := range []string{"first", "second"} {
		_, address := w.sleeper(n, "default", fmt.Sprint("new-", i))
		if err := patientTrip(address); err != nil {
			t.Fatal(err)
		}
		if got := awake[want].Hibernations(); len(got) != 1 || got[0].GetReason() != "memory" || got[0].JudgedPackets == nil {
			t.Errorf("%s: %v", want, got)
		}
	}
	for _, id := range []string{"manual", "fresh", "exec", "third"} {
		if got := awake[id].Hibernations(); len(got) != 0 {
			t.Errorf("%s was asked to sleep: %v", id, got)
		}
	}
	metric(t, n, `hibernate_room_hibernations_total{outcome="slept"} 2`)
}

// TestNoRoomIsToldHonestly: a workload that can't ever have its memory; who speaks HTTP gets a status, others a reset, and one
// that fits is served meanwhile.
func TestNoRoomIsToldHonestly(t *testing.T) {
	w := &ward{total: 100 * taken, gate: make(chan struct{})}
	close(w.gate)
	n := newNode(t)
	n.change = func(o *daemon.Options) { o.Available, o.AnswerHTTP = w.available, true }
	n.run()
	huge, address := w.sleeper(n, "default", "huge")
	huge.Update(func(s *shimv1.StatusResponse, _ *shimv1.ActivityResponse) { s.ImageBytes = 1 << 50 })
	eventually(t, "its size is known", func() bool { return n.list()["huge"].GetStatus().GetImageBytes() == 1<<50 })
	web, raw := connect(t, address), connect(t, address)
	if _, err := io.WriteString(web, "GET / HTTP/1.1\r\nHost: huge\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_, small := w.sleeper(n, "default", "small")
	if err := roundTrip(small); err != nil {
		t.Error("another one:", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(web), nil)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("HTTP: %v, %v", resp, err)
	}
	if _, err := raw.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("raw: %v", err)
	}
	metric(t, n, `hibernate_wakes_refused_total{reason="memory"} 1`)
	metric(t, n, `hibernate_clients_refused_total{answer="503",reason="memory"} 1`)
	metric(t, n, `hibernate_clients_refused_total{answer="reset",reason="memory"} 1`)
	if got := huge.Wakes(); len(got) > 0 {
		t.Errorf("it was woken: %v", got)
	}
	if !strings.Contains(n.log.String(), "a wake is refused") {
		t.Error("the log doesn't tell")
	}
}

// TestFullQueueIsToldAtOnce: beyond the queue nobody waits in vain.
func TestFullQueueIsToldAtOnce(t *testing.T) {
	w := &ward{total: 100 * taken, gate: make(chan struct{})}
	n := newNode(t)
	n.change = func(o *daemon.Options) {
		o.Available, o.AnswerHTTP = w.available, true
		o.Wakes = admission.Limits{Wakes: 1, Queue: 2}
	}
	n.run()
	var held []net.Conn
	for i := range 3 {
		_, address := w.sleeper(n, "default", fmt.Sprint(i))
		held = append(held, hold(t, address, 1)...)
		waiting(t, n, i)
	}
	_, address := w.sleeper(n, "default", "late")
	late := connect(t, address)
	if _, err := io.WriteString(late, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(late), nil)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%v, %v", resp, err)
	}
	why, err := n.api().WhyAwake(t.Context(), &daemonv1.WhyAwakeRequest{Namespace: "default", Id: "2"})
	if err != nil || len(why.GetReasons()) == 0 || why.GetReasons()[0].GetCode() != "wake-queue" || !strings.Contains(why.GetReasons()[0].GetDetail(), "its turn") {
		t.Errorf("why-awake of one that waits: %v, %v", why, err)
	}
	close(w.gate)
	answered(t, held)
	metric(t, n, `hibernate_clients_refused_total{answer="503",reason="queue-full"} 1`)
}

// TestWakesOfShimsCount: a wake that a packet has begun takes its place among those at once.
func TestWakesOfShimsCount(t *testing.T) {
	w := &ward{total: 100 * taken, gate: make(chan struct{})}
	close(w.gate)
	n := newNode(t)
	n.change = func(o *daemon.Options) { o.Available, o.Wakes = w.available, admission.Limits{Wakes: 1} }
	n.run()
	byPacket, _ := w.sleeper(n, "default", "by-packet")
	byPacket.State("waking")
	metric(t, n, "hibernate_wakes_running 1")
	other, address := w.sleeper(n, "default", "other")
	clients := hold(t, address, 3)
	waiting(t, n, 1)
	if got := other.Wakes(); len(got) > 0 {
		t.Fatalf("it was woken beside the other: %v", got)
	}
	byPacket.State("awake")
	answered(t, clients)
}

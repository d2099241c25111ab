package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// model is what a container must be like after the operations so far: the lifecycle's two tables, by hand.
type model struct {
	*app
	random *rand.Rand
	old    net.Conn // a connection that lives through everything
	asleep bool
	paused bool
	lines  int
	done   []string // the operations so far
}

// An operation is something that people, peers and engines do.
type operation struct {
	name string
	able func(*model) bool // nil: always
	do   func(*model)
}

func running(m *model) bool { return !m.paused }

var operations = []operation{
	{"request", running, func(m *model) { m.GoesOn(); m.asleep = false }},
	{"packet", running, func(m *model) { m.line(); m.asleep = false }},
	{"hibernate", nil, (*model).hibernate},
	{"hibernate", nil, (*model).hibernate}, // as often as what wakes
	{"hibernate", nil, (*model).hibernate},
	{"hibernate in traffic", running, (*model).race},
	{"wake", nil, func(m *model) {
		_, err := m.w.Wake(m.ctx(), m.ID)
		if stays := m.asleep && m.paused; stays != (err != nil) {
			m.Fatalf("wake: %v", err)
		}
		m.asleep = m.asleep && m.paused
	}},
	{"exec", running, func(m *model) {
		if out, err := m.w.Exec(m.ctx(), m.ID, "testserver", "-h"); err != nil {
			m.Fatalf("exec: %s, %v", out, err)
		}
		m.asleep = false
	}},
	{"pause", nil, func(m *model) { m.verb("pause", !m.paused); m.paused = true }},
	{"resume", nil, func(m *model) { m.verb("resume", m.paused); m.paused = false }},
	{"signal", running, func(m *model) { m.must(m.w.Kill(m.ctx(), m.ID, "USR1")); m.asleep = false }},
	{"stats", nil, func(m *model) {
		task, hangUp := m.Task()
		defer hangUp()
		if r, err := task.Stats(m.ctx(), &taskv3.StatsRequest{ID: m.ID}); err != nil || r.GetStats() == nil {
			m.Fatalf("stats: %v, %v", r, err)
		}
	}},
	{"pids", nil, func(m *model) {
		task, hangUp := m.Task()
		defer hangUp()
		if r, err := task.Pids(m.ctx(), &taskv3.PidsRequest{ID: m.ID}); err != nil || len(r.GetProcesses()) == 0 {
			m.Fatalf("pids: %v, %v", r, err)
		}
	}},
	{"update", nil, (*model).update},
	{"daemon dies", func(m *model) bool { return m.w.Daemon.Pid() != 0 }, func(m *model) { m.must(m.w.Daemon.Kill()) }},
	{"daemon starts", func(m *model) bool { return m.w.Daemon.Pid() == 0 }, func(m *model) { m.must(m.w.Daemon.Start(m.ctx())) }},
}

// endings of a sequence, with the status that the task ends with.
var lastWords = []struct {
	signal string
	status uint32
}{{"TERM", 0}, {"KILL", 137}, {"", 0}, {"", 0}}

// line goes over the old connection and back.
func (m *model) line() {
	m.Helper()
	m.lines++
	line := fmt.Sprintf("line %d\n", m.lines)
	m.must(m.old.SetDeadline(time.Now().Add(patience)))
	_, err := m.old.Write([]byte(line))
	m.must(err)
	if got, err := bufio.NewReaderSize(m.old, len(line)).ReadString('\n'); err != nil || got != line {
		m.Fatalf("%q was answered by %q: %v", line, got, err)
	}
}

func (m *model) hibernate() {
	m.Helper()
	done, err := m.w.Sleep(m.ctx(), m.ID)
	switch {
	case m.asleep && err == nil: // it sleeps already
	case m.paused && (err == nil || !strings.Contains(err.Error(), "[paused]")):
		m.Fatalf("a paused container: %v, %v", done, err)
	case !m.paused && (err != nil || done.GetOutcome() != "slept"):
		m.Fatalf("hibernation: %v, %v", done, err)
	}
	m.asleep = m.asleep || !m.paused
}

// race is a hibernation in the middle of requests: it may come to either end, and no request may notice.
func (m *model) race() {
	m.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = m.w.Hibernate(m.ctx(), m.ID) // aborted, or not
	}()
	for range 1 + m.random.IntN(4) {
		time.Sleep(time.Duration(m.random.IntN(30)) * time.Millisecond)
		m.GoesOn()
	}
	<-done
	m.eventually("the race is over", func() bool {
		s, err := m.w.Status(m.ctx(), m.ID)
		m.must(err)
		m.asleep = s.GetState() == "asleep"
		return m.asleep || s.GetState() == "awake"
	})
}

func (m *model) update() {
	m.Helper()
	task, hangUp := m.Task()
	defer hangUp()
	shares := uint64(512 + m.random.IntN(512))
	value, err := json.Marshal(specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	m.must(err)
	_, err = task.Update(m.ctx(), &taskv3.UpdateTaskRequest{ID: m.ID, Resources: &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: value,
	}})
	m.must(err)
}

// check compares what the shim tells of the container with the model.
func (m *model) check() {
	m.Helper()
	state, gate := "awake", "open"
	if m.asleep {
		state, gate = "asleep", "held"
		if m.w.Daemon.Pid() == 0 {
			gate = "parked"
		}
	}
	told := ""
	m.eventually("the workload is "+state+", its gate "+gate, func() bool {
		s, err := m.w.Status(m.ctx(), m.ID)
		m.must(err)
		told = s.GetState() + ", " + s.GetGate()
		return told == state+", "+gate
	})
	task, hangUp := m.Task()
	defer hangUp()
	want := tasktypes.Status_RUNNING
	if m.paused {
		want = tasktypes.Status_PAUSED
	}
	if r, err := task.State(m.ctx(), &taskv3.StateRequest{ID: m.ID}); err != nil || r.GetStatus() != want {
		m.Fatalf("the task is %v, want %v: %v", r.GetStatus(), want, err)
	}
}

const operationsEach = 14

// play runs one sequence with a new container, and leaves nothing.
func (l *lane) play(id string, seed int64) {
	m := &model{random: rand.New(rand.NewPCG(uint64(seed), 0))}
	l.Cleanup(func() {
		if l.Failed() {
			l.Logf("sequence %d (FAULTS_SEED=%d FAULTS_SEQUENCES=1 replays it): %s", seed, seed, strings.Join(m.done, ", "))
		}
	})
	m.app = l.run(id, nil)
	var err error
	m.old, err = l.w.Dial(l.ctx(), "tcp", m.Address(7000))
	l.must(err)
	defer m.old.Close()
	m.line()
	for range operationsEach {
		o := operations[m.random.IntN(len(operations))]
		if o.able != nil && !o.able(m) {
			continue
		}
		m.done = append(m.done, o.name)
		o.do(m)
		m.check()
		ran.operations.Add(1)
	}
	m.finish()
	ran.sequences.Add(1)
}

// finish looks that all data is there, and ends the container in one of the ways.
func (m *model) finish() {
	m.Helper()
	if m.paused {
		m.verb("resume", true)
	}
	m.line()
	m.GoesOn()
	if m.random.IntN(2) == 0 {
		m.paused = false
		m.done = append(m.done, "hibernate")
		m.hibernate()
	}
	last := lastWords[m.random.IntN(len(lastWords))]
	m.done = append(m.done, "end "+last.signal)
	if last.signal != "" {
		m.must(m.w.Kill(m.ctx(), m.ID, last.signal))
		m.stopped(fmt.Sprint(last.status))
	}
}

// modelTime is for the random sequences when no number is asked for.
const modelTime = 100 * time.Second

func TestModel(t *testing.T) {
	t.Parallel()
	total, err := strconv.Atoi(os.Getenv("FAULTS_SEQUENCES"))
	if err != nil {
		total = 1 << 20
	}
	numbers := make(chan int64)
	go func() {
		defer close(numbers)
		for begin, i := time.Now(), 0; i < total && (total < 1<<20 || time.Since(begin) < modelTime); i++ {
			numbers <- seed() + int64(i)
		}
	}()
	t.Logf("seed %d", seed())
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			l := newLane(t, true, nil)
			nobody := &app{lane: l, Server: known.New(l, l.w, "nobody", harness.Pod{})}
			before := nobody.inventory()
			for n := range numbers {
				ok := t.Run(fmt.Sprint(n), func(t *testing.T) {
					l.T = t
					defer func() { l.T = l.home }()
					l.play(fmt.Sprint("random", n), n)
				})
				if !ok {
					for range numbers { // others' sequences are stopped, too
					}
					return
				}
				if l.w.Daemon.Pid() == 0 {
					l.must(l.w.Daemon.Start(l.ctx()))
				}
				nobody.sameAs(before)
			}
		})
	}
}

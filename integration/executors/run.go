package executors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Result of a run.
type Result struct {
	Doubles []string // two copies of one identity that ran at once
	Lost    []string // what was committed and is not there; a setback that nobody has told
	Left    []string // what is left over, or doesn't come up
	Words   int      // last words of machines that had been stopped
	Told    int      // setbacks that were told
	Moves   int      // times that the workload went on at another place
	Acts    []string
}

// Failed says whether anything is wrong.
func (r Result) Failed() bool { return len(r.Doubles)+len(r.Lost)+len(r.Left) > 0 }

// String tells a run, for a person.
func (r Result) String() string {
	return fmt.Sprintf("doubles: %q\nlost: %q\nleft: %q\nmoves %d, told setbacks %d, last words %d\nacts: %s",
		r.Doubles, r.Lost, r.Left, r.Moves, r.Told, r.Words, strings.Join(r.Acts, ", "))
}

// A box is a container of the workload, or of a fork of it, on a node.
type box struct {
	id, identity string
	node         int
	pod          harness.Pod
}

// run is one.
type run struct {
	*Field
	r        *rand.Rand
	identity string
	began    time.Time
	ledger   *ledger
	doing    sync.WaitGroup // what goes on beside the next acts

	walking sync.Mutex // held by what moves the workload, one thing at a time

	mu     sync.Mutex // guards the fields below
	out    Result
	boxes  []*box           // that may be there
	places map[Place]string // the container of each place that ever was
	made   int
	thaws  []Thaw
	bodies [2]body
	forks  []fork
	ended  [2]bool // a sleeper was deleted there, which ends the workload on that node, snapshot and all
}

// body is what was done to a node, and isn't mended yet.
type body struct {
	shim    bool // a shim is dead or stopped: the daemon has to see to what it left
	daemon  bool // the daemon is dead or stopped
	down    bool // all of it is
	stopped bool // all of it is stopped
}

// fork is a child, which goes on from where its parent was.
type fork struct {
	identity string
	parent   Beat // the newest before it was made
}

// Run does random acts, mends all, and asks the witness. An error says that it could not be done to its end.
func (f *Field) Run(ctx context.Context, seed uint64) (_ Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r := &run{
		Field: f, r: rand.New(rand.NewPCG(seed, 11)), identity: fmt.Sprint("w", seed), places: make(map[Place]string), began: time.Now(),
	}
	r.ledger = f.watch(ctx, r.identity)
	defer r.ledger.stop()
	err = r.start(ctx, 0, r.identity)
	if err == nil {
		if r.r.IntN(4) > 0 { // else nothing is committed before the first act
			_, err := r.nodes[0].Sleep(ctx, r.boxes[0].id)
			r.did("slept: %v", err)
			_, _ = r.nodes[0].Wake(ctx, r.boxes[0].id)
		}
		r.count(ctx)
		for range 4 + r.r.IntN(4) {
			r.act(ctx)
			r.pause(ctx, 1200*time.Millisecond)
		}
	}
	r.doing.Wait()
	r.did("mend")
	if herr := r.heal(ctx); herr != nil {
		return r.out, errors.Join(err, fmt.Errorf("mend: %w", herr))
	}
	if err == nil {
		r.look(ctx)
		r.did("up")
		r.verdict()
	}
	return r.out, errors.Join(err, r.clean(ctx))
}

func (r *run) did(format string, args ...any) {
	text := fmt.Sprintf("%.1f ", time.Since(r.began).Seconds()) + fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.out.Acts = append(r.out.Acts, text)
	r.mu.Unlock()
	if r.Log != nil {
		r.Log("%s: %s", r.identity, text)
	}
}

// pause waits for up to most.
func (r *run) pause(ctx context.Context, most time.Duration) {
	sleep(ctx, time.Duration(r.r.Int64N(int64(most))))
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// start runs a container of an identity on a node, in a pod of its own. Without one it leaves nothing.
func (r *run) start(ctx context.Context, i int, identity string) error {
	return r.startWithin(ctx, i, identity, 6*time.Second)
}

// startWithin has the container wait so long for the right to run.
func (r *run) startWithin(ctx context.Context, i int, identity string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, cmdLimit)
	defer cancel()
	r.mu.Lock()
	r.made++
	b := &box{id: fmt.Sprint(identity, "-", r.made), identity: identity, node: i}
	r.boxes = append(r.boxes, b)
	r.mu.Unlock()
	n := r.nodes[i]
	pod, err := n.NewPod(ctx, b.id)
	if err == nil {
		b.pod = pod
		place := Place{n.name, netip.MustParseAddr(pod.IP)}
		r.mu.Lock()
		r.places[place] = b.id
		r.mu.Unlock()
		r.Witness.Lives(place, identity)
		_, err = n.World.Run(ctx, harness.Container{
			ID: b.id, Image: image, NetNS: pod.Path, Detach: true, Flags: []string{"--null-io"},
			Env:         []string{fmt.Sprint("TESTSERVER_MIB=", heap), "TESTSERVER_BEAT=" + witnessAddress},
			Annotations: map[string]string{"identity": identity, "on-stop": "hibernate", "restore-older": "true", "on-restore-failure": "block", "wake-timeout": wait.String()},
		})
	}
	if err != nil {
		_ = r.remove(context.WithoutCancel(ctx), b) // what can't be removed now is when all is mended
	}
	return err
}

// remove takes a container away, with its pod.
func (r *run) remove(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(ctx, cmdLimit)
	defer cancel()
	n := r.nodes[b.node]
	if b.identity == r.identity && r.state(ctx, b) == "asleep" {
		r.mu.Lock()
		r.ended[b.node] = true
		r.mu.Unlock()
	}
	if err := n.Remove(ctx, b.id); err != nil {
		return err
	}
	if b.pod.Name != "" && podIs(n, b.pod) {
		if err := n.RemovePod(ctx, b.pod); err != nil {
			return err
		}
	}
	if err := removeStreams(n, b.id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes = slices.DeleteFunc(r.boxes, func(o *box) bool { return o == b })
	return nil
}

// at are the containers of the workload's that may be on a node.
func (r *run) at(i int, identity string) (all []*box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.boxes {
		if b.node == i && b.identity == identity {
			all = append(all, b)
		}
	}
	return all
}

// state is a container's workload's, "" when no shim tells.
func (r *run) state(ctx context.Context, b *box) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	s, err := r.nodes[b.node].Status(ctx, b.id)
	if err != nil {
		return ""
	}
	return s.GetState()
}

// ask asks the workload over the network.
func (r *run) ask(ctx context.Context, b *box, method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", b.pod.IP, port, path), nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: r.nodes[b.node].Dial, DisableKeepAlives: true}}
	answer, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(text)), err
}

// count has the workload count, wherever it is awake.
func (r *run) count(ctx context.Context) {
	for i := range r.nodes {
		for _, b := range r.at(i, r.identity) {
			if r.state(ctx, b) == "awake" {
				_, _ = r.ask(ctx, b, http.MethodPost, "/counter")
				return
			}
		}
	}
}

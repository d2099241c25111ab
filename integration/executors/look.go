package executors

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

// heal has everything run again.
func (r *run) heal(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, healLimit)
	defer cancel()
	r.serve()
	for i, n := range r.nodes {
		n.store.Cut(false)
		n.store.Hold(false)
		n.peer.Cut(false)
		n.peer.Hold(false)
		if n.Containerd.Pid() == 0 {
			err = errors.Join(err, n.Containerd.Start(ctx))
		}
		if n.Daemon.Pid() == 0 {
			err = errors.Join(err, n.Daemon.Start(ctx))
		}
		r.bodies[i] = body{}
	}
	if !r.served {
		err = errors.Join(err, errors.New("the store's server doesn't start"))
	}
	return err
}

func (r *run) left(format string, args ...any) {
	r.out.Left = append(r.out.Left, fmt.Sprintf(format, args...))
}
func (r *run) lost(format string, args ...any) {
	r.out.Lost = append(r.out.Lost, fmt.Sprintf(format, args...))
}

// look has one executor come up, and only one.
func (r *run) look(ctx context.Context) {
	b := r.answering(ctx)
	if b == nil {
		return
	}
	if r.r.IntN(2) == 0 { // a second one is refused
		other := 1 - b.node
		for _, o := range r.at(other, r.identity) {
			_ = r.remove(ctx, o)
		}
		if err := r.startWithin(ctx, other, r.identity, 1500*time.Millisecond); err == nil {
			r.left("a second one was started on %s while one runs on %s", r.nodes[other].name, r.nodes[b.node].name)
		}
	}
	sleep(ctx, 200*time.Millisecond)
}

// answering gives the container in which the workload is awake and answers. What was awake may be on its way to its end still: then it is brought up again. nil: none,
// and that is noted.
func (r *run) answering(ctx context.Context) *box {
	for begun := time.Now(); ; sleep(ctx, 50*time.Millisecond) {
		b := r.bringUp(ctx)
		if b == nil {
			return nil
		}
		text, err := r.ask(ctx, b, http.MethodPost, "/counter") // one that began afresh doesn't listen yet
		if err == nil {
			return b
		}
		if time.Since(begun) > 20*time.Second || ctx.Err() != nil {
			r.left("it runs on %s, and doesn't answer: %q, %v", r.nodes[b.node].name, text, err)
			return nil
		}
	}
}

// bringUp gives a container in which the workload is awake: one that is there, or another. nil: none comes up, and that is noted.
func (r *run) bringUp(ctx context.Context) *box {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	var last error
	first := r.r.IntN(2)
	for round := 0; ctx.Err() == nil; round++ {
		i := (first + round) % 2
		if b := r.awake(ctx); b != nil {
			return b
		}
		if boxes := r.at(i, r.identity); len(boxes) > 0 {
			for _, b := range boxes {
				if _, last = r.nodes[i].Wake(ctx, b.id); last != nil && r.state(ctx, b) != "asleep" {
					_ = r.remove(ctx, b) // its shim is dead, or its task has ended
				}
			}
		} else if len(r.at(1-i, r.identity)) == 0 || round > 1 {
			last = r.start(ctx, i, r.identity)
		}
		sleep(ctx, 200*time.Millisecond)
	}
	r.left("it doesn't come up again: %v", last)
	return nil
}

// awake finds the container in which it is; two of them are noted.
func (r *run) awake(ctx context.Context) (found *box) {
	for i := range r.nodes {
		for _, b := range r.at(i, r.identity) {
			if r.state(ctx, b) != "awake" {
				continue
			}
			if found != nil && r.bothAwake(ctx, found, b) {
				r.out.Doubles = append(r.out.Doubles, fmt.Sprintf("%s and %s both say that they are awake", found.id, b.id))
			}
			found = b
		}
	}
	return found
}

// bothAwake says whether two containers are awake for longer than a node needs that was stopped, and goes on.
func (r *run) bothAwake(ctx context.Context, a, b *box) bool {
	sleep(ctx, lastWord)
	return r.state(ctx, a) == "awake" && r.state(ctx, b) == "awake"
}

// verdict asks the witness.
func (r *run) verdict() {
	r.ledger.stop()
	r.judge(r.identity, r.Witness.Heard(r.identity), true)
	for _, c := range r.forks {
		beats := r.Witness.Heard(c.identity)
		if len(beats) > 0 {
			parent := c.parent
			parent.At = beats[0].At.Add(-time.Minute)
			beats = append([]Beat{parent}, beats...)
		}
		r.judge(c.identity, beats, false)
	}
}

func (r *run) judge(who string, beats []Beat, ledger bool) {
	v := judge(beats, r.thaws)
	for _, d := range v.Doubles {
		r.out.Doubles = append(r.out.Doubles, who+": "+d.String())
	}
	r.out.Words += v.Words
	for i, b := range beats {
		if i > 0 && b.Place != beats[i-1].Place {
			r.out.Moves++
		}
	}
	if len(v.Doubles) > 0 {
		return // what is told of two at once tells nothing of losses
	}
	for _, s := range v.Setbacks {
		line := r.whoTold(s)
		if line == "" {
			r.lost("%s: %s: and no shim has told it. Heard around it: %s", who, s, around(beats, s.Beat))
			continue
		}
		r.out.Told++
		if ledger {
			r.excused(s, line)
		}
	}
}

// around are the beats before and after one, for a person.
func around(beats []Beat, b Beat) string {
	i := slices.Index(beats, b)
	var text strings.Builder
	for _, o := range beats[max(0, i-12):min(len(beats), i+12)] {
		fmt.Fprintf(&text, "%d at %s, ", o.N, o.At.Format("05.000"))
	}
	return text.String()
}

// whoTold is the line in which a setback was told; "": nobody has.
func (r *run) whoTold(s Setback) string {
	id := r.places[s.Beat.Place]
	i := slices.IndexFunc(r.nodes[:], func(n *node) bool { return n.name == s.Beat.Place.Node })
	for _, l := range r.nodes[i].losses(id) {
		if d := s.Beat.At.Sub(l.at); d > -10*time.Second && d < 10*time.Second {
			return l.line
		}
	}
	return ""
}

// excused looks that what is lost was nowhere committed, or is kept.
func (r *run) excused(s Setback, line string) {
	older := strings.Contains(line, "restored-older")
	if c, ok := r.ledger.floor(s.Beat.At); ok && (!older || s.Beat.Nonce == c.nonce && s.Beat.N <= c.n || s.Beat.Nonce != c.nonce && s.Before.Nonce == c.nonce) {
		r.lost("%s: but the store had snapshot %d of epoch %d, with beat %d: %s", s, c.of.sequence, c.of.epoch, c.n, line)
	}
	for i, n := range r.nodes {
		of, count, nonce, ok := r.ledger.asleep(i, s.Beat.At)
		if ok && !r.ended[i] && nonce == s.Before.Nonce && count > s.Beat.N && !n.keeps(r.identity, of) && !r.inStore(of) {
			r.lost("%s: and snapshot %d of epoch %d, with beat %d, with which it slept on %s, is nowhere: %s", s, of.sequence, of.epoch, count, n.name, line)
		}
	}
}

func (r *run) inStore(of generation) bool {
	return slices.ContainsFunc(r.ledger.stored, func(c commit) bool { return c.of == of })
}

// clean removes all of the run's, and looks that nothing of it runs on.
func (r *run) clean(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		var err error
		for _, b := range slices.Clone(r.boxes) {
			err = errors.Join(err, r.remove(ctx, b))
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			r.left("it can't be removed: %v", err)
			return err
		}
		sleep(ctx, 200*time.Millisecond)
	}
	var still []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; sleep(ctx, 100*time.Millisecond) {
		still = nil
		for _, n := range r.nodes {
			all, err := n.Processes()
			if err != nil {
				return err
			}
			for _, p := range all {
				if p.Pid != n.Containerd.Pid() && p.Pid != n.Daemon.Pid() {
					still = append(still, fmt.Sprintf("%s: %d %s", n.name, p.Pid, strings.Join(p.Argv, " ")))
				}
			}
		}
		if len(still) == 0 {
			break
		}
	}
	for _, s := range still {
		r.left("it runs on: %s", s)
		if pid := 0; ctx.Err() == nil {
			_, _ = fmt.Sscanf(s[strings.Index(s, ": ")+2:], "%d", &pid)
			if pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	r.did("clean")
	for _, who := range append([]string{r.identity}, identities(r.forks)...) {
		r.Witness.Forget(who)
	}
	return nil
}

func identities(forks []fork) (all []string) {
	for _, f := range forks {
		all = append(all, f.identity)
	}
	return all
}

package fork

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// ctl runs hibernatectl.
func (w *world) ctl(args ...string) (string, error) {
	return w.Output(w.context(), "hibernatectl", append([]string{"--config", w.ConfigFile()}, args...)...)
}

// answer asks a server at an address.
func (w *world) answer(address, method, path string) string {
	w.t.Helper()
	pod := harness.Pod{IP: address}
	return known.New(w.t, w.World, "any", pod).Get(method, path)
}

// containers are the ids of those in containerd, and how many mounts and pods' addresses there are.
func (w *world) containers() []string {
	w.t.Helper()
	all, err := w.Containers(w.context())
	w.must(err)
	slices.Sort(all)
	return all
}

// TestForkRun: the forks get containers with networks of their own, by which each is reached and goes on; ctr ends them as its own. When
// one can't be started nothing is left of any.
func TestForkRun(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Run(w.context(), harness.Container{ID: "web", Image: "testserver", CNI: true, Detach: true, Env: []string{fmt.Sprint("TESTSERVER_MIB=", mib)}, Flags: []string{"--null-io"}})
	w.must(err)
	ip, err := w.IP(w.context(), "web")
	w.must(err)
	w.must(w.WaitPort(w.context(), net.JoinHostPort(ip, "8080")))
	if got := w.answer(ip, "POST", "/counter"); got != "1" {
		t.Fatalf("the counter is %s", got)
	}
	sum := w.answer(ip, "GET", "/memory/sha256")
	held, err := w.Reservations()
	w.must(err)

	_, err = w.Ctr(w.context(), "containers", "create", harness.Reference("testserver"), "taken")
	w.must(err)
	if _, err := w.ctl("fork", "web", "one", "taken", "--run"); err == nil || !strings.Contains(err.Error(), "taken: already exists") {
		t.Errorf("a container of that id is there: %v", err)
	}
	_, err = w.Shell(w.context(), `mkdir /opt/cni/kept; mv /opt/cni/bin/firewall /opt/cni/kept/
		printf '%s\n' '#!/bin/sh' '[ "$CNI_COMMAND" = DEL ] || { echo "{\"code\":11,\"msg\":\"it is broken\"}"; exit 1; }' >/opt/cni/bin/firewall
		chmod +x /opt/cni/bin/firewall`)
	w.must(err)
	if _, err := w.ctl("fork", "web", "one", "two", "--run"); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("there is no network: %v", err)
	}
	_, err = w.Shell(w.context(), "mv /opt/cni/kept/firewall /opt/cni/bin/")
	w.must(err)
	if got := w.containers(); !slices.Equal(got, []string{"taken", "web"}) {
		t.Errorf("left: %v", got)
	}
	if now, err := w.Reservations(); err != nil || !slices.Equal(now, held) {
		t.Errorf("addresses left: %v, %v", now, err)
	}
	if out, err := w.ctl("orphans"); err != nil || strings.Contains(out, "identity=") {
		t.Errorf("identities are left: %v\n%s", err, out)
	}

	out, err := w.ctl("fork", "web", "one", "two", "--run")
	w.must(err)
	lines := strings.Fields(out)
	if len(lines) != 4 || lines[0] != "one" || lines[2] != "two" || lines[1] == lines[3] || lines[1] == ip {
		t.Fatalf("it prints %q", out)
	}
	for _, address := range []string{lines[1], lines[3]} {
		if got := w.answer(address, "GET", "/memory/sha256"); got != sum {
			t.Errorf("%s has another memory", address)
		}
		if got := w.answer(address, "POST", "/counter"); got != "2" {
			t.Errorf("the counter at %s is %s", address, got)
		}
	}
	w.told("one", "restored", "")
	for _, id := range []string{"one", "two"} { // as ctr ends what it has made
		w.must(w.Kill(w.context(), id, "KILL"))
		w.must(w.WaitTask(w.context(), id, "STOPPED"))
	}
	if now, err := w.Reservations(); err != nil || !slices.Equal(now, held) {
		t.Errorf("addresses left by ctr: %v, %v", now, err)
	}
}

// TestPool: as many children as the template says stand ready, each is one claimant's alone, all go on from the template's state, the pool fills
// up again, and is gone when its template is.
func TestPool(t *testing.T) {
	const size, claimants = 3, 4
	w := newWorld(t, nil)
	_, err := w.Run(w.context(), harness.Container{
		ID: "base", Image: "testserver", CNI: true, Detach: true, Env: []string{fmt.Sprint("TESTSERVER_MIB=", mib)}, Flags: []string{"--null-io"},
		Annotations: map[string]string{"identity": "base", "template": "true", "pool": fmt.Sprint(size)},
	})
	w.must(err)
	ip, err := w.IP(w.context(), "base")
	w.must(err)
	w.must(w.WaitPort(w.context(), net.JoinHostPort(ip, "8080")))
	sum := w.answer(ip, "GET", "/memory/sha256")
	_, err = w.Sleep(w.context(), "base")
	w.must(err)
	ready := func(n int) func() bool {
		return func() bool {
			var all []struct{ ID string }
			out, err := w.ctl("pool", "ls", "-o", "json")
			return err == nil && json.Unmarshal([]byte(out), &all) == nil && len(all) == n
		}
	}
	known.Eventually(t, "the pool is full", ready(size))

	var mu sync.Mutex
	var wg sync.WaitGroup
	claimed := make(map[string]string)
	for range claimants {
		wg.Go(func() {
			out, err := w.ctl("pool", "claim", "base")
			mu.Lock()
			defer mu.Unlock()
			if f := strings.Fields(out); err != nil || len(f) != 2 || claimed[f[0]] != "" {
				t.Errorf("claimed %q, %v", out, err)
			} else {
				claimed[f[0]] = f[1]
			}
		})
	}
	wg.Wait()
	if len(claimed) != claimants {
		t.Fatalf("%v", claimed)
	}
	for id, address := range claimed {
		if got := w.answer(address, "GET", "/memory/sha256"); got != sum {
			t.Errorf("%s has another memory", id)
		}
		w.told(id, "restored", "")
	}
	known.Eventually(t, "the pool is filled up", ready(size))
	_, err = w.ctl("pool", "empty", "base")
	w.must(err)
	if out, err := w.ctl("orphans"); err != nil || strings.Contains(out, "/base-") {
		t.Errorf("their copies of the template are left: %v\n%s", err, out)
	}
	w.must(w.Remove(w.context(), "base"))
	known.Eventually(t, "nothing of the pool is left", func() bool { return ready(0)() && len(w.containers()) == claimants })
	for id := range claimed {
		w.must(w.Remove(w.context(), id))
	}
}

package conformance

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// TestNetwork has the container behind its inner link: packets wake it, with no daemon on the node.
func TestNetwork(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "requests", func(t *testing.T) {
			pod, err := n.NewPod(n.context(t), "pod-"+m.name)
			if err != nil {
				t.Fatal(err)
			}
			c := n.run(t, m, options{args: []string{"testserver"}, network: pod.Path})
			c.hear("ready\n")
			for i := range 3 {
				if got := post(t, n, "http://"+pod.IP+":8080/counter"); got != fmt.Sprint(i+1) {
					t.Fatalf("the counter is %q after %d requests", got, i+1)
				}
				if m.asleep {
					if _, err := n.Sleep(n.context(t), c.id); err != nil { // the last packets may undo one
						t.Fatal(err)
					}
				}
			}
			p := c.exec(execOptions{args: []string{"wget", "-q", "-O", "-", "http://127.0.0.1:8080/counter"}})
			p.run()
			p.wantExit(0)
			if got := strings.TrimSpace(p.out.text()); got != "3" {
				t.Fatalf("the counter is %q, seen from inside", got)
			}
			c.delete(p.exec)
			c.end()
			if err := n.RemovePod(n.context(t), pod); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// TestFastPath: a gate that has opened doesn't wait for the fast path, and then nobody else need come for it to go on: after
// a start, a hibernation that was undone, and a wake.
func TestFastPath(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "goes on by itself", func(t *testing.T) {
			pod, err := n.NewPod(n.context(t), "fast-"+m.name)
			if err != nil {
				t.Fatal(err)
			}
			c := n.run(t, m, options{args: []string{"testserver"}, network: pod.Path})
			c.hear("ready\n")
			c.awaitFastPath("a start")
			c.nap()
			post(t, n, "http://"+pod.IP+":8080/counter")
			c.awaitFastPath("a request")
			c.undoneSleep()
			c.awaitFastPath("a hibernation that was undone")
			c.end()
			if err := n.RemovePod(n.context(t), pod); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// undoneSleep has a hibernation undone, if it isn't over already.
func (c *container) undoneSleep() {
	c.t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := c.shim.Hibernate(c.ctx(), &shimv1.HibernateRequest{Reason: "test", Manual: true})
		ended <- err
	}()
	for c.workload() == "awake" {
		select {
		case err := <-ended:
			ended <- err
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	if r, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}); err != nil {
		c.t.Fatalf("wake: %v, %v", r, err)
	}
	c.t.Logf("the hibernation: %v", <-ended)
}

// awaitFastPath waits until the open gate's packets take it, where this kernel can have it at all.
func (c *container) awaitFastPath(after string) {
	c.t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
		if err != nil {
			c.t.Fatalf("Status: %v", err)
		}
		switch why := s.GetSlowPath(); {
		case s.GetState() == "awake" && s.GetGate() == "open" && why == "":
			return
		case strings.Contains(why, "the kernel refused it"):
			c.t.Logf("no fast path here: %s", why)
			return
		case time.Now().After(limit):
			c.t.Fatalf("after %s: %s, gate %s, %q", after, s.GetState(), s.GetGate(), why)
		}
	}
}

func post(t *testing.T, n *node, url string) string {
	t.Helper()
	r, err := n.HTTP().Post(url, "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(body))
}

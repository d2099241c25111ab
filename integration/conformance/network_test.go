package conformance

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
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

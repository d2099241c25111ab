// Package hooks gives containers their network by OCI hooks alone, with published ports, as nerdctl does.
package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// limit bounds one step, a wake included.
const limit = 30 * time.Second

// app is a test server whose network the stand-in hook makes.
type app struct {
	*harness.World
	t      *testing.T
	id     string
	dir    string // the hook's
	cache  string // of CNI's results, inside the world
	bundle harness.Bundle

	http, echo, datagrams int // published ports of the node
}

func (a *app) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), limit)
	a.t.Cleanup(cancel)
	return ctx
}

// newApp makes the bundle. first are hooks at the end before the stand-in.
func newApp(t *testing.T, w *harness.World, id, cache string, first ...specs.Hook) *app {
	t.Helper()
	port := 20000 + rand.IntN(10000) // of the world's own network: nobody else is there
	a := &app{World: w, t: t, id: id, cache: cache, http: port, echo: port + 1, datagrams: port + 2, dir: filepath.Join(w.Dir, id+"-hook")}
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ports, err := json.Marshal(a.published())
	if err != nil {
		t.Fatal(err)
	}
	a.bundle, err = w.NewBundle(a.context(), harness.Container{ID: id, Image: "testserver"}, func(spec *specs.Spec) {
		spec.Annotations = map[string]string{dirKey: a.dir, cacheKey: cache, idKey: w.Name + "-" + id, portsKey: string(ports)}
		spec.Hooks = &specs.Hooks{
			CreateRuntime: []specs.Hook{standInHook(t, "createRuntime")},
			Poststop:      append(first, standInHook(t, "postStop")),
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.RemoveBundle(a.context(), a.bundle); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *app) published() []mapping {
	return []mapping{{a.http, 8080, "tcp"}, {a.echo, 7000, "tcp"}, {a.datagrams, 7002, "udp"}}
}

func standInHook(t *testing.T, event string) specs.Hook {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return specs.Hook{Path: self, Args: []string{self}, Env: []string{eventKey + "=" + event, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
}

func (a *app) start() {
	a.t.Helper()
	if err := a.RunBundle(a.context(), a.bundle, "--null-io"); err != nil {
		a.t.Fatal(err)
	}
	a.answers()
}

// answers waits until the published port does.
func (a *app) answers() {
	a.t.Helper()
	if err := a.WaitPort(a.context(), a.address(a.NodeIP(), a.http)); err != nil {
		a.t.Fatal(err)
	}
}

func (a *app) address(host string, port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

func (a *app) sleep() {
	a.t.Helper()
	if _, err := a.Sleep(a.context(), a.id); err != nil {
		a.t.Fatal(err)
	}
}

// woken waits until it is awake: answers may come before a wake is done. It was to wake so many times.
func (a *app) woken(wakes uint64) {
	a.t.Helper()
	s, err := a.WaitState(a.context(), a.id, "awake")
	if err != nil {
		a.t.Fatal(err)
	}
	if s.GetWakes() != wakes || s.GetLastWake().GetOutcome() != "restored" {
		a.t.Errorf("awake after %d wakes, want %d; last wake: %v", s.GetWakes(), wakes, s.GetLastWake())
	}
}

// dial is a caller's place on the network.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// count asks the server to count on, by its published port, on a new connection.
func (a *app) count(from dial, host string) string {
	a.t.Helper()
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: from, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(a.context(), http.MethodPost, "http://"+a.address(host, a.http)+"/counter", nil)
	if err != nil {
		a.t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		a.t.Fatalf("%s: %s (%v)", response.Status, body, err)
	}
	return strings.TrimSpace(string(body))
}

// mappings are the ports that the shim has found published.
func (a *app) mappings() []mapping {
	a.t.Helper()
	record, err := a.Record(a.id)
	if err != nil {
		a.t.Fatal(err)
	}
	data, err := os.ReadFile(a.Path(filepath.Join(record.Bundle, "hibernate/state.json")))
	if err != nil {
		a.t.Fatal(err)
	}
	var state struct {
		Attachment struct {
			PortMappings []mapping `json:"portMappings"`
		} `json:"attachment"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		a.t.Fatal(err)
	}
	return state.Attachment.PortMappings
}

// gone waits until nothing of the container's network is left: the kernel takes its time with a namespace.
func (a *app) gone() {
	a.t.Helper()
	a.until("is left", func() []string {
		var left []string
		rules, err := a.Output(a.context(), "nft", "list", "ruleset")
		if err != nil {
			a.t.Fatal(err)
		}
		for line := range strings.Lines(rules) {
			if strings.Contains(line, a.Name+"-"+a.id) || strings.Contains(line, fmt.Sprintf("dport %d", a.http)) {
				left = append(left, strings.TrimSpace(line))
			}
		}
		ports, err := a.Output(a.context(), "ip", "-brief", "link", "show", "master", "cni0")
		if err != nil {
			a.t.Fatal(err)
		}
		cached, err := filepath.Glob(filepath.Join(a.Path(a.cache), "results", "*"+a.id+"*"))
		if err != nil {
			a.t.Fatal(err)
		}
		held, err := a.Reservations()
		if err != nil {
			a.t.Fatal(err)
		}
		return slices.Concat(left, strings.Fields(ports), cached, held)
	})
}

// until waits until none says nothing any more.
func (a *app) until(what string, none func() []string) {
	a.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		left := none()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			a.t.Fatalf("%s: %q", what, left)
		}
	}
}

// shimGone waits until containerd has cleaned up after a shim's death: its bundle goes last.
func (a *app) shimGone(bundle string) {
	a.t.Helper()
	a.until("the bundle stays", func() []string {
		if _, err := os.Stat(a.Path(bundle)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return []string{bundle}
	})
	if err := a.WaitTask(a.context(), a.id, ""); err != nil {
		a.t.Fatal(err)
	}
}

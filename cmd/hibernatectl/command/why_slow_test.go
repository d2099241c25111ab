package command

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

func TestWakesTable(t *testing.T) {
	wake := func(age time.Duration, total float64, steps ...*shimv1.Step) *shimv1.Transition {
		return &shimv1.Transition{Id: "w", Kind: "wake", Reason: "connection", Outcome: "restored", StartedUnixMs: before(age), TotalMs: total, Steps: steps}
	}
	step := func(name string, start, ms float64) *shimv1.Step {
		return &shimv1.Step{Name: name, StartMs: start, Ms: ms}
	}
	slow := wake(time.Hour, 2210, step("choose", 0, 1), step("boot", 1, 40), step("verify", 1, 3.5), step("restore", 42, 2150))
	slow.Detail = "all memory was loaded before it ran"
	var out bytes.Buffer
	if err := printWakes(&out, "default/redis", []*shimv1.Transition{
		wake(time.Minute, 80.4, step("choose", 0, 0.2), step("verify", 1, 3), step("boot", 1, 41), step("restore", 43, 30), step("hook", 74, 6)), slow,
		{Id: "x", Kind: "wake", Outcome: "blocked", StartedUnixMs: before(2 * time.Hour), TotalMs: 3},
	}, now); err != nil {
		t.Fatal(err)
	}
	if err := printWakes(&out, "default/new", nil, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "why-slow.txt", out.Bytes())
}

// Each step that a wake has is explained, and none besides.
func TestStagesAreThoseOfTheShim(t *testing.T) {
	steps := map[string]bool{}
	for _, file := range []string{"wake", "chosen", "load", "claim", "stored", "volumes", "ownhooks", "forward", "address", "eligible"} {
		source, err := os.ReadFile("../../../shim/sandbox/" + file + ".go")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:\.step\(|ready(?:: | = ))"([a-z-]+)"`).FindAllSubmatch(source, -1) {
			steps[string(m[1])] = true
		}
	}
	if len(steps) < 8 {
		t.Fatalf("steps aren't found: %v", steps)
	}
	for name := range steps {
		if stages[name] == "" {
			t.Errorf("the step %s is not explained: add it to stages", name)
		}
	}
	for name := range stages {
		if !steps[name] {
			t.Errorf("no wake has the step %s", name)
		}
	}
}

// hibernated has several, the shim the last one.
func TestWhySlowWithAndWithoutADaemon(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	h := newHost(t, shim)
	out, _ := h.run(exitOK, "why-slow", "redis")
	wantText(t, out, "default/redis has not been woken yet")
	cycle := func() {
		h.run(exitOK, "hibernate", "redis")
		h.run(exitOK, "wake", "redis")
	}
	cycle()
	out, message := h.run(exitOK, "why-slow", "redis")
	wantText(t, message, "hibernated doesn't answer")
	wantText(t, out, "request   restored")
	h.daemon()
	for deadline := time.Now().Add(10 * time.Second); ; cycle() {
		if out, _ = h.run(exitOK, "why-slow", "redis"); strings.Count(out, "restored") >= 3 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("hibernated has not kept them:\n%s", out)
		}
	}
	h.run(exitNotFound, "why-slow", "nobody")
}

func TestCompletionNamesWorkloads(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "a", "web"), shimtest.Start(t, "a", "twin"), shimtest.Start(t, "b", "twin"))
	for typed, want := range map[string]string{"": "a/twin web b/twin", "w": "web", "tw": "", "a/": "a/twin a/web", "b/t": "b/twin"} {
		out, _ := h.run(exitOK, "__complete", "wake", typed)
		names := strings.Fields(out[:strings.Index(out, ":")])
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q is completed as %q, want %q", typed, got, want)
		}
	}
	out, _ := h.run(exitOK, "__complete", "lease", "take", "w")
	wantText(t, out, "web\n")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, _ := h.run(exitOK, "completion", shell)
		wantText(t, out, "hibernatectl")
	}
}

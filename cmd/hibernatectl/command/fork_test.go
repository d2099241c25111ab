package command

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

func TestForkPrintsIdentities(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	if out, _ := h.run(exitOK, "fork", "redis", "a", "b"); out != "a\nb\n" {
		t.Errorf("for a script: %q", out)
	}
	out, _ := h.run(exitOK, "fork", "default/redis", "-n", "3")
	again, _ := h.run(exitOK, "fork", "redis", "-n", "3")
	names := append(strings.Fields(out), strings.Fields(again)...)
	if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != 6 {
		t.Errorf("names that were made up: %v", names)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "redis-") {
			t.Errorf("%s is not named after the workload", name)
		}
	}
	out, _ = h.run(exitOK, "fork", "redis", "a", "-o", "json")
	var got forkedJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil || !slices.Equal(got.Identities, []string{"a"}) || got.PodNamespace != "shop" || got.FrozenMs != 120 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestForkRefusals(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	for _, args := range [][]string{{}, {"redis"}, {"redis", "a", "-n", "2"}, {"redis", "-n", "-1"}, {"redis", "-n", "1001"}} {
		h.run(exitUsage, append([]string{"fork"}, args...)...)
	}
	h.run(exitNotFound, "fork", "nginx", "a")
	_, errs := h.run(exitRefused, "fork", "redis", "a", shimtest.Taken)
	wantText(t, errs, shimtest.Taken+" is a workload already")
}

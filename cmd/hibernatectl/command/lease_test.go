package command

import (
	"encoding/json"
	"testing"

	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

func TestLease(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	h.run(exitOK, "lease", "take", "redis", "backup", "--for", "90m")
	out, _ := h.run(exitOK, "lease", "take", "redis", "debug", "--for", "5m")
	wantText(t, out, "NAME     ENDS IN   ENDS AT", "backup   1h29m", "debug    4m59s")
	out, _ = h.run(exitOK, "lease", "ls", "redis", "-o", "json")
	var list struct{ Leases []struct{ Name string } }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Leases) != 2 || list.Leases[1].Name != "debug" {
		t.Errorf("%v: %s", err, out)
	}
	_, message := h.run(exitNotFound, "lease", "release", "redis", "bakcup")
	wantText(t, message, `no lease "bakcup"; there is backup, debug`)
	h.run(exitOK, "lease", "release", "redis", "backup")
	out, _ = h.run(exitOK, "lease", "release", "redis", "debug")
	wantText(t, out, "NAME")
	_, message = h.run(exitNotFound, "lease", "release", "redis", "debug")
	wantText(t, message, "there is none; it may have expired")
}

func TestLeaseMistakes(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{exitUsage, "want a time up to 24h0m0s", []string{"take", "redis", "backup"}},
		{exitUsage, "renew it to hold it longer", []string{"take", "redis", "backup", "--for", "25h"}},
		{exitUsage, "want a time", []string{"take", "redis", "backup", "--for", "-1s"}},
		{exitUsage, "a workload and the lease's name", []string{"take", "redis", "--for", "1h"}},
		{exitUsage, "one of ls, release, take", []string{"drop", "redis"}},
		{exitNotFound, "no workload \"nginx\"", []string{"take", "nginx", "backup", "--for", "1h"}},
	} {
		_, message := h.run(c.code, append([]string{"lease"}, c.args...)...)
		wantText(t, message, c.text)
	}
}

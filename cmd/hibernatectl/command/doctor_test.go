package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hibernate-runtime/hibernate/daemon/doctor"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// Of a host without hibernated that is a problem: exit code 6, with what to do. What the others find depends on the machine.
func TestDoctor(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	config := h.config("data-dir = \"" + h.runDir + "/data\"\nmetrics-address = \"\"\n")
	out, message := h.run(exitProblems, "--config", config, "doctor")
	wantText(t, out, "problem   daemon", "nothing goes to sleep by itself", "do:    systemctl start hibernated")
	wantText(t, message, "problems were found")
	bundle := filepath.Join(h.runDir, "b.tar.gz")
	out, message = h.run(exitProblems, "--config", config, "doctor", "-o", "json", "--bundle", bundle)
	var all struct {
		Worst  doctor.Level
		Checks []doctor.Result
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || all.Worst != doctor.Problem || len(all.Checks) != len(doctor.Checks()) {
		t.Errorf("%v: %s", err, out)
	}
	wantText(t, message, bundle+" has it all")
	if info, err := os.Stat(bundle); err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Errorf("%v, %v", info, err)
	}
	_, message = h.run(exitError, "--config", config, "doctor", "--bundle", bundle)
	wantText(t, message, "file exists")

	// A configuration that can't be read is a finding, not an error.
	broken := h.config("idle-timeout = \"soon\"\n")
	var said, errs bytes.Buffer
	if code := Main(t.Context(), []string{"--config", broken, "doctor"}, &said, &errs); code != exitProblems {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	wantText(t, said.String(), "problem   configuration", "idle-timeout")
	h.run(exitUsage, "doctor", "-o", "yaml")
}

package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestUnits: systemd takes the units as they are, where it is on the machine, and their order is that of a shutdown which loses nothing.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	units := map[string]string{}
	for _, name := range []string{"hibernated.service", "hibernate-shutdown.service"} {
		text, err := os.ReadFile(filepath.Join("../contrib/systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		units[name] = string(text)
		there := regexp.MustCompile(`/usr/local/bin/[a-z-]+`).ReplaceAll(text, []byte("/bin/true")) // the programs are not installed
		if err := os.WriteFile(filepath.Join(dir, name), there, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shutdown := strings.Split(units["hibernate-shutdown.service"], "\n")
	for _, line := range []string{
		"After=containerd.service hibernated.service network.target local-fs.target", // units stop in the reverse order
		"Before=kubelet.service", "RefuseManualStop=yes", "RemainAfterExit=yes", "ExecStop=/usr/local/bin/hibernatectl drain --force --until-boot",
	} {
		if !slices.Contains(shutdown, line) {
			t.Errorf("hibernate-shutdown.service has no line %q", line)
		}
	}
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	out, err := exec.CommandContext(t.Context(), verify, "verify", filepath.Join(dir, "hibernated.service"), filepath.Join(dir, "hibernate-shutdown.service")).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

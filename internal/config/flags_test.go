package config

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestFlagsOfRunsc(t *testing.T) {
	for _, tc := range []struct{ flag, want string }{ // "" is allowed
		{"--oci-seccomp", ""},
		{"--oci-seccomp=true", ""},
		{"-allow-suid=true", ""},
		{"--debug-log=/var/log/runsc/%COMMAND%.log", ""},
		{"--strace-syscalls=open,read", ""},
		{"--overlay2=none", "would not be in its checkpoint"},
		{"-overlay2=all:memory", "would not be in its checkpoint"},
		{"--network=host", "the container's network namespace"},
		{"--directfs=false", "only with the value that it was made with"},
		{"--file-access=shared", "only with the value that it was made with"},
		{"--file-access-mounts=exclusive", "only with the value that it was made with"},
		{"--host-uds=all", "can't be checkpointed"},
		{"--host-fifo=open", "can't be checkpointed"},
		{"--platform=kvm", "the key platform"},
		{"--allow-connected-on-save=false", "would not survive sleep"},
		{"--pause-external-networking", "would not survive sleep"},
		{"--net-disconnect-ok=false", "would not survive sleep"},
		{"--save-restore-netstack=false", "would not survive sleep"},
		{"--tx-checksum-offload", "would be cut off"},
		{"--reproduce-nftables", "read anew at each wake"},
		{"--restore-spec-validation=ignore", "must not be restored as another"},
		{"--allow-flag-override", "what a restore depends on"},
		{"--rootless", "can't be restored"},
		{"--root=/x", "the shim decides where"},
		{"--shared-root=/x", "the shim decides where"},
		{"--systemd-cgroup", "control group through sleep"},
		{"--ignore-cgroups", "control group through sleep"},
		{"--log=/x", "the shim reads"},
		{"--log-format=text", "the shim reads"},
		{"--nvproxy", "the state of a device"},
		{"--nvproxy-driver-version=1", "the state of a device"},
		{"--TESTONLY-unsafe-nonroot", "own tests"},
		{"--EXPERIMENTAL-xdp=ns", "own tests"},
		{"--profile", "not among the flags known"},
		{"--oci-secomp", "did you mean --oci-seccomp?"},
		{"oci-seccomp", "is no flag: write"},
		{"--", "is no flag"},
		{"--=x", "is no flag"},
		{"", "is no flag"},
		{"---oci-seccomp", "not among"},
	} {
		_, err := flags.parse(raw{"--debug", tc.flag})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.flag, err, tc.want)
		}
	}
}

// runsc takes such annotations from any container.
func TestAnnotationsOfRunsc(t *testing.T) {
	for _, tc := range []struct {
		name, value, want string
	}{
		{"strace", "true", ""},
		{"oci-seccomp", "true", ""},
		{"overlay2", "none", `annotation: dev.gvisor.flag.overlay2 = "none": --overlay2 is refused`},
		{"allow-connected-on-save", "false", "open connections would not survive"},
		{"pause-external-networking", "true", "open connections would not survive"},
		{"host-uds", "all", "can't be checkpointed"},
		{"of-the-future", "1", "not among the flags"},
	} {
		_, err := Load(Input{Annotations: map[string]string{"dev.gvisor.flag." + tc.name: tc.value, "dev.gvisor.spec.mount.a.type": "tmpfs"}})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
		var one *Error
		if err != nil && !errors.As(err, &one) {
			t.Errorf("%s: %T is no *Error", tc.name, err)
		}
	}
}

func TestFlagListsAreInOrderAndApart(t *testing.T) {
	if !slices.IsSorted(harmlessFlags) {
		t.Error("the flags allowed are not sorted")
	}
	for _, f := range harmlessFlags {
		for _, b := range brokenBy {
			if slices.Contains(b.flags, f) {
				t.Errorf("%s is allowed and refused", f)
			}
		}
	}
}

// Each name in the lists is one of the runsc that this is built for.
func TestFlagsAreThoseOfRunsc(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("..", "..", ".tools", "runsc"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "flags").CombinedOutput()
	if err != nil {
		t.Fatal("no runsc, run make tools: ", err)
	}
	known := regexp.MustCompile(`(?m)^\s+-([^\s]+)`).FindAllStringSubmatch(string(out), -1)
	isKnown := func(name string) bool {
		prefix, all := strings.CutSuffix(name, "*")
		return slices.ContainsFunc(known, func(k []string) bool { return k[1] == name || all && strings.HasPrefix(k[1], prefix) })
	}
	names := slices.Clone(harmlessFlags)
	for _, b := range brokenBy {
		names = append(names, b.flags...)
	}
	for _, name := range names {
		if !isKnown(name) {
			t.Errorf("runsc has no flag %s", name)
		}
	}
}

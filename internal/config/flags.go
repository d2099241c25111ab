package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// flagAnnotation comes before a flag's name in an annotation of runsc's own, by which a container overrides the flag for
// its sandbox. runsc lets any container do so with some of those that a restore depends on.
const flagAnnotation = "dev.gvisor.flag."

// Flags of runsc that change nothing about what a checkpoint holds or about how it is restored.
var harmlessFlags = []string{
	"allow-packet-socket-write", "allow-suid", "app-huge-pages", "character-device-policy", "control-rpc-stop-timeout",
	"cpu-num-from-quota", "dcache", "debug", "debug-command", "debug-log", "debug-log-format", "debug-to-user-log",
	"fdlimit", "final-metrics-log", "gso", "gvisor-gro", "gvisor-marker-file", "host-settings",
	"in-sandbox-cgroup", "kvm-use-cpu-nums", "log-packets", "net-raw", "network-processors-per-channel",
	"num-network-channels", "oci-seccomp", "override-procs", "panic-log", "panic-signal", "platform_device_path", "qdisc",
	"qdisc-tbf-burst", "qdisc-tbf-rate", "ref-leak-mode", "sidecar-release-enforcement-policy",
	"sidecar-usage-policy", "software-gso", "strace", "strace-event", "strace-log-size", "strace-syscalls",
	"systrap-disable-fast-path", "systrap-disable-syscall-patching", "traceback", "watchdog-action",
}

// brokenBy says why a flag is refused. A name that ends with * stands for all that begin so.
var brokenBy = []struct {
	why   string
	flags []string
}{
	{"what the container writes would not be in its checkpoint", []string{"overlay", "overlay2"}},
	{"it is set by the container's network namespace", []string{"network"}},
	{"a checkpoint is restored only with the value that it was made with", []string{"directfs", "file-access", "file-access-mounts"}},
	{"a socket or FIFO of the host's that is open can't be checkpointed", []string{"host-uds", "fsgofer-host-uds", "host-fifo"}},
	{"it is chosen by the key platform", []string{"platform"}},
	{"open connections would not survive sleep", []string{
		"allow-connected-on-save", "allow-live-tcp-migration", "net-disconnect-ok", "pause-external-networking", "save-restore-netstack",
	}},
	{"the sandbox would be cut off: packets on the inner link have no checksums yet", []string{"rx-checksum-offload", "tx-checksum-offload"}},
	{"rules would be read anew at each wake, from a namespace that has none", []string{"reproduce-nat", "reproduce-nftables"}},
	{"a container must not be restored as another", []string{"restore-spec-validation"}},
	{"a container could change what a restore depends on", []string{"allow-flag-override"}},
	{"rootless sandboxes can't be restored", []string{"rootless"}},
	{"the shim decides where runsc keeps its state", []string{"root", "shared-root"}},
	{"the shim keeps the control group through sleep", []string{"cgroupfs", "ignore-cgroups", "mount-cgroup-v2", "systemd-cgroup"}},
	{"the shim reads what runsc says", []string{
		"alsologtostderr", "debug-log-fd", "h", "help", "log", "log-fd", "log-format", "panic-log-fd", "version",
	}},
	{"the state of a device can't be checkpointed", []string{"nvproxy*", "rdmaproxy", "tpuproxy"}},
	{"it is for runsc's own tests, or not ready", []string{"EXPERIMENTAL*", "TESTONLY*", "coverage*", "iouring"}},
	{"it has no effect in this runsc", []string{"buffer-pooling", "fuse", "lisafs", "vfs2"}},
}

// flagName is what the flag in "--name=value" is called.
func flagName(flag string) (string, error) {
	name, ok := strings.CutPrefix(flag, "-")
	if !ok {
		return "", fmt.Errorf("%q is no flag: write --name or --name=value", flag)
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
	if name == "" {
		return "", fmt.Errorf("%q is no flag: write --name or --name=value", flag)
	}
	return name, nil
}

// checkFlag refuses a flag of runsc by its name, unless it is known to leave sleep and wake intact.
func checkFlag(name string) error {
	if slices.Contains(harmlessFlags, name) {
		return nil
	}
	for _, b := range brokenBy {
		for _, f := range b.flags {
			prefix, all := strings.CutSuffix(f, "*")
			if name == f || all && strings.HasPrefix(name, prefix) {
				return fmt.Errorf("--%s is refused: %s", name, b.why)
			}
		}
	}
	if near := nearest(name, harmlessFlags); near != "" {
		return fmt.Errorf("--%s is not among the flags known to leave sleep and wake intact; did you mean --%s?", name, near)
	}
	return fmt.Errorf("--%s is not among the flags known to leave sleep and wake intact", name)
}

// flags is a list of runsc's global flags, each as --name=value, or --name.
var flags = codec[[]string]{
	kind: "a list of flags such as --oci-seccomp; docs/CONFIGURATION.md lists those allowed",
	parse: func(r raw) ([]string, error) {
		var errs []error
		for _, flag := range r {
			name, err := flagName(flag)
			if err == nil {
				err = checkFlag(name)
			}
			errs = append(errs, err)
		}
		return slices.Clone([]string(r)), errors.Join(errs...)
	},
	format: func(l []string) raw { return slices.Clone(raw(l)) },
}

// checkFlagAnnotations refuses the annotations of runsc's own by which a container would change what its restore depends
// on.
func checkFlagAnnotations(all map[string]string) error {
	var errs []error
	for key, value := range all {
		name, ok := strings.CutPrefix(key, flagAnnotation)
		if !ok {
			continue
		}
		if err := checkFlag(name); err != nil {
			errs = append(errs, &Error{Key: key, Origin: "annotation", Value: value, Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// writeFlags is the part of docs/CONFIGURATION.md on runsc's flags.
func writeFlags(b *strings.Builder) {
	b.WriteString("### Flags of runsc\n\nA snapshot is restored by the same runsc with the same flags, so `runsc-flags` takes only " +
		"those known to leave sleep and\nwake intact, and refuses the others by name. The same holds for runsc's own annotations " +
		"(`" + flagAnnotation + "<name>`), which any\ncontainer may have.\n\nAllowed: ")
	for i, f := range harmlessFlags {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("`" + f + "`")
	}
	b.WriteString(".\n\n| refused | because |\n|---|---|\n")
	for _, r := range brokenBy {
		fmt.Fprintf(b, "| `%s` | %s |\n", strings.Join(r.flags, "`, `"), r.why)
	}
	b.WriteString("| any other | it was not tried |\n\n")
}

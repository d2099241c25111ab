package critest

// Reasons for which a spec is not asked.
const (
	gvisor  = "gVisor can't: "
	off     = "not asked of runsc: "
	missing = "not here: "
)

// skipped has words of the names of specs that are not asked, each with its reason.
var skipped = map[string]string{
	"AppArmor":       missing + "the kernel has no AppArmor",
	"NRI":            missing + "containerd's NRI is off in the node's configuration, and critest has no socket of it",
	"UserNamespaces": missing + "user namespaces are not supported by this runtime",

	"sysctls":                   gvisor + "its kernel has no kernel.shm_rmid_forced and no fs.mqueue",
	"rshared":                   gvisor + "mounts don't propagate from inside to the host",
	"non-recursive readonly":    gvisor + "a read-only mount is so for all that is below",
	"HostIpc":                   gvisor + "its kernel has no /proc/sysvipc",
	"HostNetwork is true":       gvisor + "its network stack doesn't have the host's ports",
	"Privileged is true":        gvisor + "its kernel makes no bridge (brctl)",
	"adding capability":         gvisor + "its kernel makes no bridge (brctl)",
	"MaskedPaths":               gvisor + "its own /proc is not masked by a container's paths",
	"ReadonlyPaths":             gvisor + "its own /proc has no read-only paths of a container's",
	"escalation when false":     off + "allow-suid",
	"seccomp localhost profile": off + "oci-seccomp",
	"seccomp default on":        off + "oci-seccomp",
	"profile that blocks setting hostname with": off + "oci-seccomp",

	"Container OOM":      missing + "the limit of a container binds the pod's sandbox, which has none here: kubelet sets that of the pod",
	"metrics operations": missing + "containerd tells container_oom_events_total on cgroup v2 alone",
	"image with digest":  missing + "the digest is that of an image that nobody can make again",
}

// awake has, in the same way, what is not asked where pods sleep whenever nobody calls.
var awake = map[string]string{
	"reopening container log": "it waits for what a program writes by itself, each second: a sleeper writes nothing until somebody calls",
}

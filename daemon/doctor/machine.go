package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// The kernels that count: one that nobody has tried an older one than, and the first with the fast path. What is needed is tried by network.
const (
	kernelLeast = "5.10"
	kernelFast  = "6.6"
)

func kernel(_ context.Context, h *Host) Result {
	version, err := h.text("/proc/sys/kernel/osrelease")
	switch {
	case err != nil:
		return untold(err)
	case before(version, kernelLeast):
		return problem("nobody has tried one so old: sleeps and wakes may fail", "take a kernel of "+kernelFast+" or later", "Linux %s, older than %s", version, kernelLeast)
	case before(version, kernelFast):
		return warning("packets of awake workloads pass the pod's network stack: a fifth less throughput", "take a kernel of "+kernelFast+" or later",
			"Linux %s has no fast path", version)
	}
	return ok("Linux %s", version)
}

// before compares the first two numbers of versions.
func before(version, than string) bool {
	var a, b [2]int
	_, _ = fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &a[0], &a[1])
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

func network(ctx context.Context, h *Host) Result {
	err := h.Network(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return untold(fmt.Errorf("what the gate needs of the kernel can be tried by root only: %w", err))
	case err != nil:
		return problem("workloads with a network can't sleep, or don't start", "load the module that the finding names, or take a kernel that has it", "missing: %v", err)
	}
	return ok("a network namespace, veth and the gate's nft expressions work")
}

func cgroup(_ context.Context, h *Host) Result {
	controllers, err := h.text("/sys/fs/cgroup/cgroup.controllers")
	switch {
	case err == nil && strings.Contains(" "+controllers+" ", " memory "):
		return ok("version 2, with memory")
	case err == nil:
		return problem("limits of memory don't hold, and workloads that take too much aren't ended", "enable the controller memory (cgroup_enable=memory on the kernel's command line)",
			"version 2 without memory: %s", controllers)
	case h.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes"):
		return ok("version 1, with memory")
	}
	return problem("no container can be limited, and containerd starts none", "mount the cgroup file system at /sys/fs/cgroup", "no cgroup with memory at /sys/fs/cgroup")
}

// What workloads take of what the kernel has one of for all namespaces, and what others on the node are taken to need.
const (
	neighboursEach, neighboursOther = 4, 256
	inotifyEach, inotifyOther       = 1, 64
	pidsEach, pidsOther             = 64, 4096
)

// limit judges a number of the kernel's by how many workloads it is enough for.
func (h *Host) limit(name string, each, other uint64, means string) Result {
	has, err := h.number("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return untold(err)
	}
	var room uint64
	if has > other {
		room = (has - other) / each
	}
	wanted := (2*uint64(h.Workloads)+16)*each + other
	do := fmt.Sprintf("sysctl -w %s=%d, and the same in a file below /etc/sysctl.d", name, max(4*has, 2*wanted))
	switch {
	case room < uint64(h.Workloads):
		return problem(means, do, "%s is %d: enough for about %d workloads, and there are %d", name, has, room, h.Workloads)
	case has < wanted:
		return warning(means+", when there are more workloads", do, "%s is %d: enough for about %d workloads, and there are %d", name, has, room, h.Workloads)
	}
	return ok("%s is %d: enough for about %d workloads", name, has, room)
}

func neighbours(_ context.Context, h *Host) Result {
	return h.limit("net.ipv4.neigh.default.gc_thresh3", neighboursEach, neighboursOther, "packets are lost for want of room for neighbours, in all namespaces at once")
}

func inotify(_ context.Context, h *Host) Result {
	return h.limit("fs.inotify.max_user_instances", inotifyEach, inotifyOther, "programs that watch files or control groups fail with \"too many open files\"")
}

func processes(_ context.Context, h *Host) Result {
	means := "sandboxes can't start or wake, for want of threads"
	a := h.limit("kernel.pid_max", pidsEach, pidsOther, means)
	b := h.limit("kernel.threads-max", pidsEach, pidsOther, means)
	if Worst([]Result{a}) != OK && a.Level != b.Level && b.Level != Problem || b.Level == OK {
		return a
	}
	return b
}

func memory(_ context.Context, h *Host) Result {
	if h.exists("/sys/module/page_reporting") {
		if on, err := h.text("/sys/module/page_reporting/parameters/page_reporting_order"); err == nil {
			return warning("the hypervisor may take free memory back, and give it slowly: now and then a wake takes a multiple of the usual (see Slow wakes in docs/OPERATIONS.md)",
				"where wakes are slow now and then, turn free page reporting off for this machine, or live with it", "free page reporting is there (order %s)", on)
		}
	}
	return ok("no free page reporting")
}

func clock(_ context.Context, h *Host) Result {
	fine, err := h.Synchronised()
	switch {
	case err != nil:
		return untold(err)
	case !fine:
		return warning("times in logs and snapshots mislead, and S3 refuses requests whose time is wrong by a quarter of an hour",
			"run a time service (systemd-timesyncd, chrony); in some virtual machines the hypervisor does it, unknown to the kernel", "the kernel's clock is not synchronised")
	}
	return ok("synchronised")
}

// owned says what is wrong with a file's owner and mode, where it is there; wanted is what others must not have.
func (h *Host) owned(name string, forbidden os.FileMode) string {
	info, err := os.Lstat(h.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return err.Error()
	case info.Mode()&fs.ModeSymlink != 0:
		if info, err = os.Stat(h.path(name)); err != nil {
			return err.Error()
		}
	}
	if uid := ownerOf(info); uid != h.UID {
		return fmt.Sprintf("%s belongs to user %d (chown root %s)", name, uid, name)
	}
	if info.Mode().Perm()&forbidden != 0 {
		return fmt.Sprintf("%s has mode %04o (chmod %s %s)", name, info.Mode().Perm(), without(forbidden), name)
	}
	return ""
}

// without is how chmod takes bits away.
func without(bits os.FileMode) string {
	if bits&0o055 != 0 {
		return "go="
	}
	return "go-w"
}

// Package doctor looks over a node and says what is wrong with it, what that means, and what to do: kernel, programs, containerd, daemon,
// store, disk, permissions. It changes nothing.
//
// A *check* is a row of the table in Checks. All that it reads comes through a Host, so that each is tested with a root and programs of the
// test's own.
//
//	for _, r := range doctor.Run(ctx, host) {
//		fmt.Println(r.Level, r.Check, r.Finding)
//	}
package doctor

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Level says how bad a result is.
type Level string

// The levels, the best first.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works, but slower, or less safely, or it can't be told
	Problem Level = "problem" // something that hibernation needs does not work
)

// Result is what a check has found.
type Result struct {
	Check   string `json:"check"` // its name, stable
	Level   Level  `json:"level"`
	Finding string `json:"finding"`
	Means   string `json:"means,omitempty"` // for the node; empty where all is well
	Do      string `json:"do,omitempty"`    // what a person does about it
}

// Check is one thing to look at.
type Check struct {
	Name  string
	About string // what is looked at
	run   func(context.Context, *Host) Result
}

// Checks are all, in the order in which people read them: what others need comes first.
func Checks() []Check {
	return []Check{
		{"configuration", "the configuration file can be read, and its keys fit each other", configuration},
		{"kernel", "the kernel's version", kernel},
		{"network", "network namespaces, veth pairs and the nft expressions that the gate uses, tried in a namespace that is gone afterwards", network},
		{"cgroup", "cgroups of version 1 or 2, with memory", cgroup},
		{"neighbours", "net.ipv4.neigh.default.gc_thresh3, which all network namespaces share", neighbours},
		{"inotify", "fs.inotify.max_user_instances, which all of root's programs share", inotify},
		{"processes", "kernel.pid_max and kernel.threads-max", processes},
		{"memory", "whether the hypervisor takes free memory back", memory},
		{"programs", "the shim and its helper", programs},
		{"runsc", "the runsc that workloads start with", runscProgram},
		{"sidecar", "the program by which memory comes while a workload runs", sidecar},
		{"containerd", "containerd answers, and its version is known to work", containerd},
		{"runtime", "containerd finds the shim, and its CRI plugin knows the runtime", runtimeKnown},
		{"daemon", "hibernated answers, and is of this version", daemon},
		{"store", "the durable tier, as hibernated tells", store},
		{"disk", "free space below data-dir", disk},
		{"encryption", "data-dir lies on an encrypted device: snapshots are memory in clear", encryption},
		{"permissions", "sockets, directories, programs, configuration and keys are root's alone", permissions},
		{"clock", "the machine's clock is synchronised", clock},
		{"notes", "nobody has left the node cordoned or frozen", notes},
	}
}

// each bounds one check.
const each = 15 * time.Second

// Run makes all checks at the same time. The results are in their order.
func Run(ctx context.Context, h *Host) []Result {
	checks := Checks()
	results := make([]Result, len(checks))
	var all errgroup.Group
	for i, c := range checks {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, each)
			defer cancel()
			results[i] = c.run(ctx, h)
			results[i].Check = c.Name
			return nil
		})
	}
	_ = all.Wait()
	return results
}

// Worst is the worst level of all.
func Worst(all []Result) Level {
	worst := OK
	for _, r := range all {
		switch {
		case r.Level == Problem:
			return Problem
		case r.Level == Warning:
			worst = Warning
		}
	}
	return worst
}

func ok(format string, args ...any) Result {
	return Result{Level: OK, Finding: fmt.Sprintf(format, args...)}
}

func warning(means, do, format string, args ...any) Result {
	return Result{Level: Warning, Finding: fmt.Sprintf(format, args...), Means: means, Do: do}
}

func problem(means, do, format string, args ...any) Result {
	return Result{Level: Problem, Finding: fmt.Sprintf(format, args...), Means: means, Do: do}
}

// untold is a warning that something could not be found out.
func untold(err error) Result {
	return warning("it can't be told whether this is in order", "run hibernatectl doctor as root; else mend what the error says", "%v", err)
}

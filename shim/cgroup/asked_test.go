package cgroup

import (
	"reflect"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// zeros are resources with each number that can mean "nothing asked".
func zeros() *specs.LinuxResources {
	return &specs.LinuxResources{
		CPU: &specs.LinuxCPU{
			Shares: ptr[uint64](0), Quota: ptr[int64](0), Burst: ptr[uint64](0), Period: ptr[uint64](0),
			RealtimeRuntime: ptr[int64](0), RealtimePeriod: ptr[uint64](0),
		},
		Memory: &specs.LinuxMemory{
			Limit: ptr[int64](0), Reservation: ptr[int64](0), Swap: ptr[int64](0),
			//lint:ignore SA1019 deprecated, and still applied where the kernel has it
			Kernel: ptr[int64](0), KernelTCP: ptr[int64](0),
		},
		Pids:    &specs.LinuxPids{Limit: ptr[int64](0)},
		BlockIO: &specs.LinuxBlockIO{Weight: ptr[uint16](0), LeafWeight: ptr[uint16](0)},
		Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}},
	}
}

func TestAskedLeavesZerosOut(t *testing.T) {
	given := zeros()
	want := &specs.LinuxResources{
		CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}, Pids: &specs.LinuxPids{}, BlockIO: &specs.LinuxBlockIO{},
	}
	if got := Asked(given); !reflect.DeepEqual(got, want) {
		t.Errorf("of zeros is left %+v", got)
	}
	if !reflect.DeepEqual(given, zeros()) {
		t.Error("what was given has been changed")
	}
	kept := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: ptr[uint64](2), Cpus: "0", Quota: ptr[int64](-1)},
		Memory: &specs.LinuxMemory{Limit: ptr[int64](-1), Swappiness: ptr[uint64](0)},
	}
	if got := Asked(kept); !reflect.DeepEqual(got, kept) {
		t.Errorf("what was asked for is now %+v", got)
	}
}

// nerdctl sends zeros for the real-time scheduler, which v1 kernels refuse.
func TestZerosAreNoLimits(t *testing.T) {
	g := newGroup(t, zeros())
	if err := g.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](64 << 20)}}); err != nil {
		t.Fatal(err)
	}
	if err := g.Update(zeros()); err != nil {
		t.Fatal(err)
	}
	if limit := memoryLimit(t, g); limit != 64<<20 {
		t.Errorf("zeros have changed the limit to %d", limit)
	}
}

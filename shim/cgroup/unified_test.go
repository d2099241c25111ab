package cgroup

import (
	"os"
	"strings"
	"testing"
	"time"

	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/typeurl/v2"
)

// unifiedFiles are those of a v2 group, as the kernel writes them.
func unifiedFiles() map[string]string {
	return map[string]string{
		"cgroup.controllers": "cpu io memory pids\n",
		"cgroup.procs":       "1\n",
		"cpu.stat":           "usage_usec 5000123\nuser_usec 3000000\nsystem_usec 2000123\nnr_periods 10\nnr_throttled 4\nthrottled_usec 77\n",
		"cpu.max":            "max 100000\n",
		"cpu.weight":         "100\n",
		"io.stat":            "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
		"memory.current":     "104857600\n",
		"memory.max":         "268435456\n",
		"memory.swap.max":    "max\n",
		"memory.stat":        "anon 1048576\nfile 83886080\nshmem 52428800\ninactive_file 20971520\nactive_file 10485760\n",
		"memory.events":      "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
		"pids.current":       "7\n",
		"pids.max":           "500\n",
	}
}

// What containerd and the idle policy are told on a v2 host.
func TestUnifiedStats(t *testing.T) {
	u := fixture(t, unifiedFiles())
	g := &Group{path: u.path, driver: u}
	metrics, err := g.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	if url := metrics.GetTypeUrl(); !strings.HasSuffix(url, "io.containerd.cgroups.v2.Metrics") {
		t.Errorf("the type is %s", url)
	}
	v, err := typeurl.UnmarshalAny(metrics)
	if err != nil {
		t.Fatal(err)
	}
	m := v.(*stats2.Metrics)
	for name, pair := range map[string][2]uint64{
		"CPU":           {m.GetCPU().GetUsageUsec(), 5000123},
		"throttled":     {m.GetCPU().GetNrThrottled(), 4},
		"memory":        {m.GetMemory().GetUsage(), 100 << 20},
		"limit":         {m.GetMemory().GetUsageLimit(), 256 << 20},
		"inactive":      {m.GetMemory().GetInactiveFile(), 20 << 20},
		"kills":         {m.GetMemoryEvents().GetOomKill(), 2},
		"processes":     {m.GetPids().GetCurrent(), 7},
		"their limit":   {m.GetPids().GetLimit(), 500},
		"written":       {m.GetIo().GetUsage()[0].GetWbytes(), 8192},
		"the group's":   {uint64(g.CPU()), uint64(5000123 * time.Microsecond)},
		"working set":   {g.Memory(), 80 << 20},
		"without files": {g.Own(), 70 << 20},
		"counted here":  {must(t, g.Kills), 2},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d, want %d", name, pair[0], pair[1])
		}
	}
}

func must(t *testing.T, f func() (uint64, error)) uint64 {
	t.Helper()
	n, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A group that is gone has no counters, and says so.
func TestUnifiedGone(t *testing.T) {
	u := fixture(t, nil)
	if err := os.Remove(u.dir()); err != nil {
		t.Fatal(err)
	}
	g := &Group{path: u.path, driver: u}
	if _, err := g.Metrics(); err == nil {
		t.Error("metrics of nothing")
	}
	if g.CPU() != 0 || g.Memory() != 0 {
		t.Error("counters of nothing")
	}
	if _, err := g.Kills(); err == nil {
		t.Error("kills of nothing")
	}
}

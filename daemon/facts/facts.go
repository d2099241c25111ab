// Package facts says what a node is and can restore: to the other nodes and to schedulers, in the node's object in the store, and to people.
//
// A *fact* is a name and a text. The names are documented in docs/OPERATIONS.md; one that is not known is left out.
package facts

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Names of facts. Lists have spaces between their elements.
const (
	Host        = durable.HostFact
	Version     = "version"          // of hibernated
	Arch        = "arch"             // as Go calls it: amd64, arm64
	CPUFeatures = "cpu-features"     // that a sandbox may need, as runsc cpu-features prints them
	CPUGiven    = "cpu-given"        // those that a workload is given which starts afresh (the key cpu-features); absent: all
	CacheLine   = "cache-line"       // bytes
	PageSize    = "page-size"        // bytes
	Platform    = "platform"         // gVisor's: systrap, kvm, ptrace
	Runscs      = "runsc"            // VERSION=SHA256 of each that is there, the one that workloads start with first
	Memory      = "memory"           // bytes that the machine has
	Available   = "memory-available" // bytes that are free, or can be freed at once
	CPUs        = "cpus"             // that hibernated may use
)

// Options say where things are.
type Options struct {
	Runsc    func() (string, error) // path of the configured one
	Shelf    runsc.Shelf
	Platform string
	CPUGiven []string // nil: all
	Version  string
	// Meminfo is the machine's memory, in bytes. Default: the kernel's.
	Meminfo func() (total, available uint64)
	Log     *slog.Logger
}

// Node is what is known of this one. Safe for concurrent use.
type Node struct {
	opts Options

	mu    sync.Mutex // guards the fields below
	here  eligible.Ability
	kept  []runsc.Kept
	first bool // of kept is the configured one
	err   error
	told  string
}

// New knows nothing of runsc before Look.
func New(o Options) *Node {
	if o.Meminfo == nil {
		o.Meminfo = meminfo
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	here := eligible.Here()
	here.Platform = o.Platform
	return &Node{opts: o, here: here}
}

const (
	every      = time.Minute
	lookWithin = 30 * time.Second
)

// Run looks again and again which runscs there are, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		n.Look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Look finds out which runscs there are, and what they say of the CPU. It runs each of them once a boot.
func (n *Node) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	kept, first, features, err := n.look(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept, n.first, n.err = kept, first, err
	n.here.Features, n.here.Runscs = features, nil
	for _, k := range kept {
		n.here.Runscs = append(n.here.Runscs, eligible.Runsc{Version: k.Version, SHA256: k.SHA256})
	}
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != n.told {
		n.opts.Log.Warn("which runscs there are", "error", err)
	}
	n.told = text
}

func (n *Node) look(ctx context.Context) (all []runsc.Kept, first bool, features []string, err error) {
	path, err := n.opts.Runsc()
	if err == nil {
		c := &runsc.Client{Path: path, CacheDir: n.opts.Shelf.CacheDir, Runner: n.opts.Shelf.Runner}
		var k runsc.Kept
		if k, err = runsc.Describe(ctx, c); err == nil {
			all, first = append(all, k), true
			features, err = c.CPUFeatures(ctx)
		}
	}
	side, serr := n.opts.Shelf.All(ctx)
	for _, k := range side {
		if !slices.ContainsFunc(all, func(o runsc.Kept) bool { return o.SHA256 == k.SHA256 }) {
			all = append(all, k)
		}
	}
	return all, first, features, errors.Join(err, serr)
}

// Ability is what the node can restore.
func (n *Node) Ability() eligible.Ability {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.here
}

// Runscs are those that are there; the first one is the one that workloads start with, if that can be used. err says what could not be found out.
func (n *Node) Runscs() (all []runsc.Kept, first bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kept, n.first, n.err
}

// most bounds a fact: the store takes none that is longer.
const most = 7 << 10

// Facts are those of now. It is quick.
func (n *Node) Facts() map[string]string {
	here := n.Ability()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	total, available := n.opts.Meminfo()
	var runscs []string
	for _, r := range here.Runscs {
		runscs = append(runscs, r.Version+"="+r.SHA256)
	}
	all := map[string]string{
		Host: host, Version: n.opts.Version, Arch: here.Architecture, CPUFeatures: list(here.Features), CPUGiven: list(n.opts.CPUGiven),
		CacheLine: number(uint64(here.CacheLine)), PageSize: number(uint64(here.PageSize)), Platform: here.Platform, Runscs: list(runscs),
		Memory: number(total), Available: number(available), CPUs: number(uint64(runtime.NumCPU())),
	}
	for name, text := range all {
		if text == "" {
			delete(all, name)
		}
	}
	return all
}

// list leaves out what doesn't fit.
func list(all []string) string {
	text := strings.Join(all, " ")
	if len(text) > most {
		text = text[:strings.LastIndexByte(text[:most+1], ' ')]
	}
	return text
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// AbilityOf reads what another node's facts say that it can restore. What they don't say is not known.
func AbilityOf(facts map[string]string) eligible.Ability {
	size := func(name string) int {
		n, _ := strconv.Atoi(facts[name])
		return n
	}
	a := eligible.Ability{
		Architecture: facts[Arch], Platform: facts[Platform], Features: strings.Fields(facts[CPUFeatures]), CacheLine: size(CacheLine), PageSize: size(PageSize),
	}
	for _, r := range strings.Fields(facts[Runscs]) {
		version, digest, _ := strings.Cut(r, "=")
		a.Runscs = append(a.Runscs, eligible.Runsc{Version: version, SHA256: digest})
	}
	return a
}

func meminfo() (total, available uint64) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	for line := range bytes.Lines(data) {
		var into *uint64
		name, rest, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "MemTotal":
			into = &total
		case "MemAvailable":
			into = &available
		default:
			continue
		}
		if fields := bytes.Fields(rest); len(fields) > 0 {
			kib, _ := strconv.ParseUint(string(fields[0]), 10, 64)
			*into = kib << 10
		}
	}
	return total, available
}

// Command bench measures what sleep costs, in a private world that it takes down again, and compares it with the goals.
//
// The machine may be noisy, so nothing is compared with a figure of another hour: *ours*, a container under the shim, and
// *raw*, the same checkpoint handled with runsc alone, take turns within one run. Raw has the same flags, the same
// specification, the same kind of inner link with its neighbours in place, and neither checks nor a proxy; its client asks
// again each millisecond. What is compared is medians, or the median of the pairs' ratios.
//
// A *figure* is a named value with its unit and, mostly, a goal. All are printed, and written to .bench/bench.jsonl. A
// missed goal is told and is no failure; a figure that could not be measured is. With -shim it is the shim by itself that
// is measured, into .bench/bench-shim.jsonl; with -network the network and the wake proxy, into .bench/bench-network.jsonl;
// with -store the durable tier, into .bench/bench-store.jsonl; with -flat wakes whose memory comes later, beside those by plain files and by runsc alone, into .bench/bench-flat.jsonl.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

func main() {
	short := flag.Bool("short", false, "fewer runs and sizes: some minutes")
	only := flag.String("only", "", "measure only the parts that this regular expression matches")
	sizes := flag.String("sizes", "", "other heaps, in MiB, as 16,128")
	shim := flag.Bool("shim", false, "measure the shim by itself, and write bench-shim.jsonl")
	network := flag.Bool("network", false, "measure the network and the wake proxy, and write bench-network.jsonl")
	flat := flag.Bool("flat", false, "measure wakes whose memory comes later, and write bench-flat.jsonl")
	moves := flag.Bool("move", false, "measure workloads that move to another node or are forked, and write bench-move.jsonl")
	storeTier := flag.Bool("store", false, "measure the durable tier, and write bench-store.jsonl")
	rounds := flag.Int("rounds", 0, "other number of rounds with each heap, and of random runs")
	seed := flag.Uint64("seed", 1, "the first random run's")
	if filepath.Base(os.Args[0]) == stubName {
		os.Exit(beStub(os.Args[1:]))
	}
	flag.Parse()
	if target := os.Getenv(crowdEnv); target != "" {
		os.Exit(beCrowd(target))
	}
	if task := os.Getenv(storeEnv); task != "" {
		os.Exit(beStore(task))
	}
	if socket := os.Getenv(echoEnv); socket != "" {
		os.Exit(beEcho(socket))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := full
	if *short {
		p = quick
	}
	p.store.seed = *seed
	err := p.change(*sizes, *rounds)
	if err == nil {
		set := sleepSet
		switch {
		case *network:
			set = networkSet
		case *shim:
			set = shimSet
		case *flat:
			set = flatSet
		case *storeTier:
			set = storeSet
		case *moves:
			set = moveSet
		}
		err = run(ctx, p, *only, set)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: FAILED:", err)
		os.Exit(1)
	}
}

// A part is measured after the others, with containers of its own.
type part struct {
	name    string
	measure func(context.Context, *bench) error
}

// A set is the parts whose figures go into one file.
type set struct {
	file  string
	parts []part
	load  string // the key load of the world; "" for the default
	// prepare is called before the first part; what it returns is called after the last.
	prepare func(context.Context, *bench) (stop func() error, err error)
}

var sleepSet = set{file: "bench.jsonl", parts: []part{
	{"asleep", measureAsleep},
	{"wake", measureWakes},
	{"cold", measureColdStart},
	{"written", measureWritten},
	{"four", measureFour},
	{"cycles", measureCycles},
	{"steady", measureSteady},
}}

var shimSet = set{file: "bench-shim.jsonl", parts: []part{
	{"answers", measureAnswers},
	{"true", measureTrue},
	{"memory", measureShimMemory},
}}

var networkSet = set{file: "bench-network.jsonl", parts: []part{
	{"path", measurePath},
	{"held", measureHeld},
	{"flat", measureFlat},
	{"crowd", measureCrowd},
	{"keepalive", measureKeepAlive},
	{"established", measureEstablished},
	{"kills", measureKills},
	{"positions", measurePositions},
}}

var flatSet = set{file: "bench-flat.jsonl", load: flatLoad, parts: []part{
	{"sizes", measureFlatSizes},
	{"many", measureFlatMany},
	{"unsignalled", measureFlatUnsignalled},
	{"cold", measureFlatCold},
	{"four", measureFlatFour},
	{"standby", measureStandby},
	{"requests", measureFlatRequests},
	{"programs", measureFlatPrograms},
	{"touched", measureFlatTouched},
	{"corruptions", measureCorruptions},
}}

// bench is one run: where it runs, how much is measured, and what came out.
type bench struct {
	world  *harness.World
	plan   plan
	file   string
	bucket *bucket  // of the store's set
	env    []string // further ones of flat wakes' workloads
	made   int      // workloads of flat wakes and their twins, whose names are numbered
	report
}

func run(ctx context.Context, p plan, only string, set set) (err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	settings := map[string]string{"mode": `"manual"`, "flat-from": `"64MiB"`} // as it is by default
	if set.load != "" {
		settings["load"] = fmt.Sprintf("%q", set.load)
	}
	w, err := harness.Start(ctx, harness.Options{Daemon: true, Settings: settings})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	b := &bench{world: w, plan: p, file: set.file}
	if set.prepare != nil {
		stop, err := set.prepare(ctx, b)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	var failed []error
	for _, part := range set.parts {
		if ctx.Err() != nil || !chosen.MatchString(part.name) {
			continue
		}
		began := time.Now()
		if err := part.measure(ctx, b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part.name, err))
			fmt.Fprintf(os.Stderr, "bench: %s could not be measured: %v\n%s\n", part.name, err, w.Containerd.LogTail(3000))
		}
		failed = append(failed, b.tidy())
		fmt.Fprintf(os.Stderr, "bench: %s: %.0f s\n", part.name, time.Since(began).Seconds())
	}
	b.print(os.Stdout)
	return errors.Join(append(failed, ctx.Err(), b.save(only != ""))...)
}

// tidy removes what a part left, also when the run is being ended.
func (b *bench) tidy() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.world.RemoveAll(ctx)
}

// save writes the figures. Those of parts that were not measured stay as they were.
func (b *bench) save(some bool) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	path := filepath.Join(root, ".bench", b.file)
	if some {
		if err := b.keep(path); err != nil {
			return err
		}
	}
	return b.write(path)
}

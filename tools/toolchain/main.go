// Toolchain builds the outside programs that this repository is built and tested with, and links them in .tools/.
//
// Each tool has a modfile of its own beside this directory (tools/<name>.mod): their dependencies disagree with each
// other and with the product's. One that needs a main of ours is a module in a directory instead (tools/<name>/). A tool is built once for a digest of what decides its bytes, into the user's cache
// (${XDG_CACHE_HOME:-~/.cache}/hibernate/tools/<name>-<digest>/), and never again while it is there.
//
//	go run ./tools/toolchain            # every tool
//	go run ./tools/toolchain runsc cni  # these
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	jobs := flag.Int("p", 2, "packages compiled at a time")
	links := flag.String("links", ".tools", "directory for the links to the programs")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), *links, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "toolchain:", err)
		os.Exit(1)
	}
}

// run makes sure that the named tools, or all of them, are in the cache and linked.
func run(ctx context.Context, names []string, links string, jobs int) error {
	wanted, err := choose(names)
	if err != nil {
		return err
	}
	store, err := openCache()
	if err != nil {
		return err
	}
	for _, t := range wanted {
		dir, fresh, took, err := store.ensure(ctx, t, jobs)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if err := link(t, dir, links); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if fresh {
			fmt.Printf("built %s in %s\n", t.name, took.Round(time.Second))
		}
	}
	return nil
}

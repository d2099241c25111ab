// Images packs Debian packages, with the libraries they need, into OCI archives for `ctr images import`: real servers to
// test with, where neither a registry nor an image builder is at hand.
//
// A recipe names packages, the ones of their dependencies that a container has no use for, and a few files. apt resolves
// and fetches the packages, as it does for the machine but against an empty machine, so that the closure is whole;
// nothing is installed. Their contents are merged into one layer without documentation, manuals and translations.
//
// An archive is packed once for a recipe and the versions of its packages, into the user's cache
// (${XDG_CACHE_HOME:-~/.cache}/hibernate/images/<name>-<digest>.tar), and linked as <links>/<name>.tar. The image in it is
// called hibernate.test/<name>:1.
//
//	go run . -links DIR -testserver FILE [NAME…]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	links := flag.String("links", "images", "directory for the links to the archives")
	server := flag.String("testserver", "", "the test server's static binary, for the image of that name")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *links, *server, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// run makes sure that the archives of the named recipes, or of all, are in the cache and linked.
func run(ctx context.Context, links, server string, names []string) error {
	recipes, err := recipes(server)
	if err != nil {
		return err
	}
	for _, r := range recipes {
		if len(names) > 0 && !slices.Contains(names, r.name) {
			continue
		}
		archive, err := ensure(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if err := link(archive, links, r.name+".tar"); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// Command hibernated is the daemon of a node: wake proxy, idle policy, metrics. See docs/CONFIGURATION.md for its file.
//
// SIGTERM and SIGINT end it in order: connections under way are carried on by a process of their own, which it starts as
// "hibernated drain" (see package drainer); all else goes on without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns its exit code: 0 for an end in order, 1 for an error, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == drainArgument {
		return drain(ctx, stderr)
	}
	flags := flag.NewFlagSet("hibernated", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("config", config.DefaultFile, "configuration `file`")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "hibernated: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if *showVersion {
		fmt.Fprintln(stdout, "hibernated", version.Version)
		return 0
	}
	cfg, err := config.Load(config.Input{File: *file})
	if err != nil {
		fmt.Fprintln(stderr, "hibernated: configuration:", err)
		return 1
	}
	log := newLog(cfg, stderr)
	if err := serve(ctx, *file, cfg, log); err != nil {
		log.Error("hibernated ends", "error", err)
		return 1
	}
	return 0
}

func newLog(cfg *config.Config, out io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == config.LogJSON {
		return slog.New(slog.NewJSONHandler(out, opts))
	}
	return slog.New(slog.NewTextHandler(out, opts))
}

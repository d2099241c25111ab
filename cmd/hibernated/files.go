package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// filesBeside is what the daemon needs beside its connections: shims, listeners, pipes.
const filesBeside = 4096

// filesFor is what so many connections take: two for each, as many again while bytes pass.
func filesFor(connections int) uint64 { return 4*uint64(connections) + filesBeside }

// raiseFileLimit gives the daemon the descriptors that so many connections take. It returns how many of them it may have; what
// is less is told, and those beyond wait in their backlogs.
func raiseFileLimit(connections int, log *slog.Logger) int {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		log.Warn("the limit of open files is not known", "error", err)
		return connections
	}
	want := filesFor(connections)
	for _, next := range []unix.Rlimit{{Cur: want, Max: max(want, now.Max)}, {Cur: now.Max, Max: now.Max}} {
		if now.Cur < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &next) == nil {
			now = next
		}
	}
	if now.Cur >= want {
		return connections
	}
	fit := int(max(now.Cur, filesFor(1))-filesBeside) / 4
	log.Warn("fewer files can be open than max-node-connections needs: it is lowered", "files", now.Cur, "needs", want, "connections", fit)
	return fit
}

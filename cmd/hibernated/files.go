package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// filesBeside is what the daemon needs beside its connections: shims, listeners, pipes.
const filesBeside = 1 << 14

// raiseFileLimit gives the daemon the descriptors that so many connections take: two for each, as many again while bytes pass.
// What it may not have is told, and connections beyond it wait.
func raiseFileLimit(connections int, log *slog.Logger) {
	want := uint64(4*connections + filesBeside)
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		log.Warn("the limit of open files is not known", "error", err)
		return
	}
	if now.Cur >= want {
		return
	}
	next := unix.Rlimit{Cur: want, Max: max(want, now.Max)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &next); err == nil {
		return
	}
	next = unix.Rlimit{Cur: min(want, now.Max), Max: now.Max}
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &next)
	log.Warn("fewer files can be open than max-node-connections needs", "limit", next.Cur, "needs", want, "error", err)
}

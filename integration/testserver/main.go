// Testserver is the program that tests put to sleep. It makes each kind of state that a sleep must keep, and tells what it
// has: memory with a checksum, a counter, open and unlinked files with their offsets, shared mappings, written files, open
// connections, and the count and checksum of every byte that came in.
//
// Ports: HTTP on 8080 (see routes), a line echo on 7000, a server that speaks first on 7001, UDP echo on 7002. Where asked for:
// the same HTTP behind TLS (-tls), a server that ends connections as its clients say (-manners), and packets to a witness (-beat).
// Answers are plain text or JSON; an error is status 400 or 500 with its text. TESTSERVER_MIB, or -mib, is memory filled
// with random bytes before the ports open.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	var a addresses
	mib := flag.Int("mib", envInt("TESTSERVER_MIB"), "MiB of memory to fill with random bytes at start")
	flag.StringVar(&a.http, "http", ":8080", "HTTP")
	flag.StringVar(&a.echo, "echo", ":7000", "line echo, TCP")
	flag.StringVar(&a.greet, "greet", ":7001", "TCP, the server speaks first")
	flag.StringVar(&a.udp, "udp", ":7002", "echo, UDP")
	udpBuffer := flag.Int("udp-buffer", 0, "bytes that may wait to be read by it; 0: the system's default")
	flag.StringVar(&a.tls, "tls", "", "HTTP/1 and HTTP/2 behind TLS, with a certificate of its own; none when empty")
	flag.StringVar(&a.manners, "manners", "", "TCP, see manners; none when empty")
	beat := flag.String("beat", os.Getenv("TESTSERVER_BEAT"), "where to tell, all the time and by UDP, that this runs; nowhere when empty")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s := newServer()
	if err := s.memory.grow(*mib); err != nil {
		fatal(err)
	}
	l, err := listen(a)
	if err != nil {
		fatal(err)
	}
	if *udpBuffer > 0 {
		if err := l.udp.(*net.UDPConn).SetReadBuffer(*udpBuffer); err != nil {
			fatal(err)
		}
	}
	if *beat != "" {
		go s.beat(ctx, *beat)
	}
	fmt.Println("ready")
	if err := s.serve(ctx, l); err != nil {
		fatal(err)
	}
	fmt.Println("bye")
}

func envInt(name string) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return n
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "testserver:", err)
	os.Exit(1)
}

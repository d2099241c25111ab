// Registry serves image archives over HTTPS on loopback, under whatever names a program asks for that pulls from a
// registry it can't be told to replace: the network namespace that it runs in must resolve their hosts to loopback, and the
// program must trust the certificate (SSL_CERT_FILE). An archive is one that the images program has packed.
//
//	registry -cert FILE REFERENCE=ARCHIVE…
//	registry -cert FILE -busybox ARCHIVE -standin PROGRAM   all that critest asks for
//
// Once it serves, it has written the certificate and prints "ready". It ends with a signal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// address is HTTPS's port: a reference without a port means it, and the namespace is the caller's own.
const address = "127.0.0.1:443"

func main() {
	cert := flag.String("cert", "", "file for the certificate, PEM")
	busybox := flag.String("busybox", "", "archive of the image of that name: serve critest's images, too, made of it")
	standin := flag.String("standin", "", "the program that stands for critest's servers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *cert, *busybox, *standin, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cert, busybox, standin string, args []string) error {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var hosts []string
	if busybox != "" {
		var err error
		if hosts, err = addCritest(ctx, handler, busybox, standin); err != nil {
			return fmt.Errorf("critest's images: %w", err)
		}
	}
	for _, a := range args {
		name, archive, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("%q: want REFERENCE=ARCHIVE", a)
		}
		host, err := add(handler, name, archive)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		hosts = append(hosts, host)
	}
	config, err := selfSigned(cert, hosts)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	fmt.Println("ready")
	if err := server.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

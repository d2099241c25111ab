// Command hibernatectl shows and steers the hibernating workloads of this node. See `hibernatectl --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibernate-runtime/hibernate/cmd/hibernatectl/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

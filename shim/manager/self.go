package manager

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
)

// Self is what the daemon knows of itself.
type Self struct {
	Address string // of its ttrpc socket, unix:///…
	Events  string // of containerd's ttrpc socket, a path
	// Containerd is the path of containerd's own socket; "" when it was not told.
	Containerd string
	Log        io.Writer // containerd's log; a write never waits
	Level      slog.Level
}

// Know returns the daemon's Self. To be called in the daemon, whose working directory is the bundle.
func Know() (Self, error) {
	address, err := shim.ReadAddress(AddressFile)
	if err != nil {
		return Self{}, fmt.Errorf("find this shim's address: %w", err)
	}
	level := slog.LevelInfo
	if log.GetLevel() >= log.DebugLevel {
		level = slog.LevelDebug
	}
	inv, err := parse(os.Args[1:])
	if err != nil {
		return Self{}, err
	}
	return Self{
		Address: address, Events: os.Getenv(ttrpcAddressEnv), Containerd: inv.address, Log: log.L.Logger.Out, Level: level,
	}, nil
}

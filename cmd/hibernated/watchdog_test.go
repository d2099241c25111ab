package main

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// TestWatchdog: systemd is told that the daemon runs for as often as it wants to know, and only then.
func TestWatchdog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	notify := func(state string) { _, _ = systemd.SdNotify(false, state) }
	watchdog(notify)() // nobody asks
	t.Setenv("WATCHDOG_USEC", "30000")
	stop := watchdog(notify)
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	for range 3 {
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != "WATCHDOG=1" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
	}
	stop()
}

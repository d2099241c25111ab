package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func TestSockets(t *testing.T) {
	tcp, udp := tables[0], tables[2]
	for name, c := range map[string]struct {
		table table
		line  string
		want  string // "" for none
	}{
		"listening":         {tcp, "   0: 00000000:0050 00000000:0000 0A 0:0", `tcp 0.0.0.0 80`},
		"no padding":        {tcp, "1: 0100A8C0:1F90 00000000:0000 0A x", `tcp 192.168.0.1 8080`},
		"established":       {tcp, "   0: 0200000A:0050 0300000A:0FA0 01 0:0", "tcp 10.0.0.2 80 from 10.0.0.3 4000"},
		"half closed":       {tcp, "   0: 0200000A:0050 0300000A:0FA0 08 0:0", "tcp 10.0.0.2 80 from 10.0.0.3 4000"},
		"half closed, here": {tcp, "   0: 0200000A:0050 0300000A:0FA0 05 0:0", "tcp 10.0.0.2 80 from 10.0.0.3 4000"},
		"opening":           {tcp, "   0: 0200000A:0050 0300000A:0FA0 02 0:0", ""},
		"time wait":         {tcp, "   0: 0200000A:0050 0300000A:0FA0 06 0:0", ""},
		"connected inside":  {tcp, "   0: 0100007F:0050 0100007F:0FA0 01 0:0", ""},
		"six connected": {
			tcp, "   0: 0000000000000000FFFF00000200000A:0050 0000000000000000FFFF00000300000A:0FA0 01 0:0",
			"tcp ::ffff:10.0.0.2 80 from ::ffff:10.0.0.3 4000",
		},
		"connected to what": {tcp, "   0: 0200000A:0050 0300000:0FA0 01 0:0", ""},
		"loopback":          {tcp, "   0: 0100007F:0050 00000000:0000 0A 0:0", ""},
		"other loopback":    {tcp, "   0: 3500007F:0035 00000000:0000 0A 0:0", ""},
		"six":               {tcp, "   0: 00000000000000000000000000000000:0050 0:0 0A 0:0", `tcp :: 80`},
		"six loopback":      {tcp, "   0: 00000000000000000000000001000000:0050 0:0 0A 0:0", ""},
		"six mapped":        {tcp, "   0: 0000000000000000FFFF00000100007F:0050 0:0 0A 0:0", ""},
		"six address":       {tcp, "   0: B80D01200000000000000000EFBE0000:0050 0:0 0A 0:0", `tcp 2001:db8::beef 80`},
		"udp":               {udp, "   0: 00000000:0035 00000000:0000 07 0:0", `udp 0.0.0.0 53`},
		"udp connected":     {udp, "   0: 0100A8C0:0035 08080808:0035 01 0:0", `udp 192.168.0.1 53`},
		"bad address":       {tcp, "   0: 0000000Z:0050 00000000:0000 0A 0:0", ""},
		"short address":     {tcp, "   0: 0000:0050 00000000:0000 0A 0:0", ""},
		"no port":           {tcp, "   0: 00000000 00000000:0000 0A 0:0", ""},
		"long port":         {tcp, "   0: 00000000:0000000050 00000000:0000 0A 0:0", ""},
		"too few columns":   {tcp, "   0: 00000000:0050", ""},
		"empty":             {tcp, "", ""},
		"only a line break": {tcp, "\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := appendSockets(nil, []byte(heading+c.line+"\n"), c.table)
			if got := readable(t, out); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// readable decodes one line of output the way that package runsc does.
func readable(t *testing.T, out []byte) string {
	t.Helper()
	if len(out) == 0 {
		return ""
	}
	var s struct {
		Proto          string
		Addr, Peer     netip.Addr
		Port, PeerPort uint16
	}
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	text := fmt.Sprintf("%s %s %d", s.Proto, s.Addr, s.Port)
	if s.Peer.IsValid() {
		text += fmt.Sprintf(" from %s %d", s.Peer, s.PeerPort)
	}
	return text
}

func FuzzSockets(f *testing.F) {
	f.Add([]byte(heading + "   0: 00000000:0050 00000000:0000 0A 0:0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for line := range bytes.Lines(appendSockets(nil, data, tables[1])) {
			if !json.Valid(line) {
				t.Errorf("not JSON: %q", line)
			}
		}
	})
}

// The holder survives every signal that can be survived, and is small.
func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hibernate-helper")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(path, "hold")
	settled, ready, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer settled.Close()
	cmd.ExtraFiles = []*os.File{ready}
	err = cmd.Start()
	ready.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if said, err := io.ReadAll(settled); err != nil || string(said) != "." {
		t.Fatalf("the holder says %q (%v), not that it is settled", said, err)
	}
	seesNothing(t, fmt.Sprintf("/proc/%d/root", cmd.Process.Pid))
	for s := syscall.Signal(1); s < 65; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP {
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatalf("after signal %d: %v", s-1, err)
			}
		}
	}
	if kib := privateKiB(t, cmd.Process.Pid); kib > 1024 {
		t.Errorf("the holder has %d KiB of its own", kib)
	}
}

// seesNothing: whoever takes the holder's files for the container's finds none
// of the host's, and can't make any.
func seesNothing(t *testing.T, root string) {
	t.Helper()
	for _, path := range []string{"/etc", "/tmp", "/proc"} {
		if _, err := os.Stat(root + path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the holder's %s: %v", path, err)
		}
	}
	if err := os.WriteFile(root+"/file", nil, 0o600); err == nil {
		t.Error("a file could be made in the holder's root")
	}
	if err := os.Mkdir(root+"/dir", 0o700); err == nil {
		t.Error("a directory could be made in the holder's root")
	}
}

func procField(t *testing.T, pid int, file, field string) string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + string(appendDecimal(nil, uint64(pid))) + "/" + file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), field)
	words := strings.Fields(rest)
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

func privateKiB(t *testing.T, pid int) uint64 {
	t.Helper()
	var n uint64
	for _, c := range procField(t, pid, "smaps_rollup", "Anonymous:") {
		n = n*10 + uint64(c-'0')
	}
	return n
}

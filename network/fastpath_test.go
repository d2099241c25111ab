package network_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestFastPathPassesPodsStack(t *testing.T) {
	w, l, _ := awake(t)
	if why := l.FastPath(); why != "" {
		t.Fatalf("no fast path: %s", why)
	}
	c, err := w.dial(echoPort, time.Second)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", time.Second)) // the hop is known from here on
	before := forwarded(t, w)
	for range 20 {
		must(t, say(c, "hello", time.Second))
	}
	if n := forwarded(t, w) - before; n != 0 {
		t.Fatalf("P forwarded %d packets", n)
	}
}

// forwarded is how many packets P's stack has forwarded so far.
func forwarded(t *testing.T, w *world) int {
	t.Helper()
	return inside(t, w.pod, func() (int, error) { return snmp("Ip:", "ForwDatagrams") })
}

// snmp reads one of the kernel's counters for the thread's namespace.
func snmp(group, name string) (int, error) {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] != group {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		return strconv.Atoi(words[slices.Index(names, name)])
	}
	return 0, fmt.Errorf("no %s %s", group, name)
}

package trim

import (
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestUnchanged(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 00:01 7                          /bin/a program
Rss:                 100 kB
Anonymous:             0 kB
00500000-00600000 r--p 00100000 00:01 7                          /bin/a program
Anonymous:             4 kB
00600000-00700000 r--p 00200000 00:01 7                          /bin/a program
Anonymous:             0 kB
AnonHugePages:         0 kB
00700000-00800000 rw-p 00300000 00:01 7                          /bin/a program
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 00:01 8                  /lib/other
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []region{{0x400000, 0x500000}, {0x600000, 0x700000}}
	if got := unchanged(strings.NewReader(smaps), "/bin/a program"); !reflect.DeepEqual(got, want) {
		t.Errorf("unchanged = %x, want %x", got, want)
	}
}

// mapped is how much of files this process has mapped, in KiB.
func mapped(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no RssFile in /proc/self/status")
	return 0
}

func TestProcess(t *testing.T) {
	before := mapped(t)
	for range 3 {
		if err := Process(); err != nil {
			t.Fatal(err)
		}
	}
	if after := mapped(t); after > before*3/4 {
		t.Errorf("mapped %d KiB before and %d after", before, after)
	}
}

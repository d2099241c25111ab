package sandbox

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

const ofKubelet = "GET /healthz HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-probe/1.36\r\n\r\n"

// byGRPC is what kubelet's gRPC client says.
func byGRPC(agent string) string {
	var out, head bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	e := hpack.NewEncoder(&head)
	for _, h := range []string{":method POST", ":scheme http", ":path /grpc.health.v1.Health/Check", "user-agent " + agent} {
		name, value, _ := strings.Cut(h, " ")
		_ = e.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	_ = f.WriteSettings()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	return out.String()
}

func judging(now *time.Time) *judge {
	return &judge{
		probe: func(q wakeproxy.Question) bool { return strings.HasPrefix(q.UserAgent, kubeletAgent) },
		now:   func() time.Time { return *now }, open: map[netip.AddrPort]*beginning{},
	}
}

func saidBy(port uint16, text string) network.Said {
	return network.Said{Use: network.Use{Peer: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}, Data: []byte(text)}
}

// What clients say tells probes from use, in however many segments it comes.
func TestWhatIsSaidIsJudged(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		used bool
	}{
		"kubelet's": {ofKubelet, false}, "of others": {strings.Replace(ofKubelet, "kube-probe", "curl", 1), true}, "no HTTP": {"\x16\x03\x01", true},
		"by gRPC": {byGRPC("kube-probe/1.36 grpc-go/1.84"), false}, "of others by gRPC": {byGRPC("grpc-go/1.84"), true},
		"half a head": {ofKubelet[:40], false}, "a head without end": {"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", saidAtMost), true},
	} {
		for _, size := range []int{1 << 20, 7} {
			now := time.Now()
			j, used := judging(&now), false
			for rest := c.said; rest != "" && !used; {
				n := min(size, len(rest))
				used, rest = j.used(saidBy(1, rest[:n])), rest[n:]
			}
			if used != c.used {
				t.Errorf("%s, in pieces of %d: use is %t", name, size, used)
			}
		}
	}
}

// A port that is used again is judged again, and not more are followed than there is room for.
func TestConnectionsAreJudgedAnew(t *testing.T) {
	now := time.Now()
	j := judging(&now)
	if j.used(saidBy(1, ofKubelet)) || j.used(saidBy(1, "more of it")) {
		t.Error("a probe is use")
	}
	now = now.Add(judgedFor)
	if !j.used(saidBy(1, "something else")) {
		t.Error("what comes later from its port is no use")
	}
	for i := range openAtMost {
		if j.used(saidBy(uint16(i+10), ofKubelet)) {
			t.Fatalf("probe %d is use", i)
		}
	}
	if !j.used(saidBy(9999, ofKubelet)) {
		t.Error("more are followed than there is room for")
	}
	now = now.Add(judgedFor)
	if j.used(saidBy(9999, ofKubelet)) || len(j.open) > 1 {
		t.Errorf("%s", fmt.Sprint(len(j.open), " are followed that have ended"))
	}
}

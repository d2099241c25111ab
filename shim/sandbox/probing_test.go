package sandbox

import (
	"net/netip"
	"testing"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// A probe is told by where it comes from and by what it asks.
func TestWhatIsAProbe(t *testing.T) {
	w := bare()
	w.config.Probes = []config.Probe{
		{Kubelet: true}, {Port: 80, Path: "/health", From: netip.MustParsePrefix("10.1.0.0/16")}, {Port: 81, From: netip.MustParsePrefix("10.1.0.0/16")},
		{Port: 82, Path: "/grpc.health.v1.Health/Check", From: netip.MustParsePrefix("10.1.0.0/16")},
	}
	q := questions{w: w, node: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}
	const check = "/grpc.health.v1.Health/Check"
	for name, c := range map[string]struct {
		from  string
		asked wakeproxy.Question
		probe bool
	}{
		"kubelet's":                     {"10.0.0.1", wakeproxy.Question{Port: 9, Method: "GET", Path: "/any", UserAgent: "kube-probe/1.36"}, true},
		"kubelet's by gRPC":             {"10.0.0.1", wakeproxy.Question{Port: 9, Method: "POST", Path: check, Stream: 1, UserAgent: "kube-probe/1.36 grpc-go/1.84"}, true},
		"kubelet's of TCP":              {"10.0.0.1", wakeproxy.Question{Port: 9, Closed: true}, true},
		"as kubelet's, from elsewhere":  {"10.1.0.1", wakeproxy.Question{Port: 9, Method: "GET", UserAgent: "kube-probe/1.36"}, false},
		"of others on the node":         {"10.0.0.1", wakeproxy.Question{Port: 9, Method: "POST", Path: check, Stream: 1, UserAgent: "grpc-go/1.84"}, false},
		"declared":                      {"10.1.0.1", wakeproxy.Question{Port: 80, Method: "GET", Path: "/health"}, true},
		"declared, to another port":     {"10.1.0.1", wakeproxy.Question{Port: 81, Method: "GET", Path: "/health"}, false},
		"declared, something sent":      {"10.1.0.1", wakeproxy.Question{Port: 80, Method: "POST", Path: "/health"}, false},
		"declared of TCP":               {"10.1.0.1", wakeproxy.Question{Port: 81, Closed: true}, true},
		"declared by gRPC":              {"10.1.0.1", wakeproxy.Question{Port: 82, Method: "POST", Path: check, Stream: 1}, true},
		"as declared by gRPC, by HTTP1": {"10.1.0.1", wakeproxy.Question{Port: 82, Method: "POST", Path: check}, false},
	} {
		c.asked.Client = netip.AddrPortFrom(netip.MustParseAddr(c.from), 40000)
		if got := q.Probe(c.asked); got != c.probe {
			t.Errorf("%s: %t", name, got)
		}
	}
}

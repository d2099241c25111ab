package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxFilters bounds what the kernel looks at for each packet.
const maxFilters = 32

// Filter names traffic. Each field that is set must fit; one is.
type Filter struct {
	Protocol string       // tcp, udp; "" for both
	Port     uint16       // of the workload's; 0 for all
	From     netip.Prefix // whose; the zero value for everybody's
}

// String is the filter as it is written.
func (f Filter) String() string {
	var words []string
	if f.Port != 0 {
		port := strconv.Itoa(int(f.Port))
		if f.Protocol != "" {
			port = f.Protocol + "/" + port
		}
		words = append(words, port)
	}
	if f.From.IsValid() {
		from := f.From.String()
		if f.From.IsSingleIP() {
			from = f.From.Addr().String()
		}
		words = append(words, "from", from)
	}
	return strings.Join(words, " ")
}

var filters = codec[[]Filter]{
	kind: fmt.Sprintf("a list of up to %d such as 9090, udp/5353, from 10.0.0.0/8, tcp/9090 from 10.0.0.5", maxFilters),
	parse: func(r raw) ([]Filter, error) {
		var out []Filter
		for _, text := range items(r) {
			f, err := parseFilter(text)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			out = append(out, f)
		}
		if len(out) > maxFilters {
			return nil, fmt.Errorf("more than %d", maxFilters)
		}
		return out, nil
	},
	format: func(list []Filter) raw {
		out := raw{}
		for _, f := range list {
			out = append(out, f.String())
		}
		return out
	},
}

// items are a list's, as a file or an annotation has it.
func items(r raw) (out []string) {
	for _, text := range r {
		for _, item := range strings.Split(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				out = append(out, item)
			}
		}
	}
	return out
}

func parseFilter(text string) (f Filter, err error) {
	words := strings.Fields(text)
	if words[0] != "from" {
		number := words[0]
		if protocol, rest, ok := strings.Cut(number, "/"); ok {
			if protocol != "tcp" && protocol != "udp" {
				return f, errors.New("neither tcp nor udp")
			}
			f.Protocol, number = protocol, rest
		}
		if f.Port, err = port(number); err != nil {
			return f, err
		}
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return f, nil
	case len(words) != 2 || words[0] != "from":
		return f, errors.New("not a port, or from and a network, or both")
	}
	f.From, err = network(words[1])
	return f, err
}

// network is an address, or one with the length of its network.
func network(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, errors.New("not an address, nor a network such as 10.0.0.0/8")
	}
	return p.Masked(), nil
}

// commands are patterns of command lines.
var commands = codec[[]string]{
	kind:   "a list of command lines, in which * stands for any text, commas among it",
	parse:  func(r raw) ([]string, error) { return items(r), nil },
	format: func(list []string) raw { return raw(list) },
}

// IsProbe says whether a command is one that only asks whether the workload is well.
func (c *Config) IsProbe(args []string) bool {
	line := strings.Join(args, " ")
	for _, pattern := range c.ProbeExec {
		if glob(pattern, line) {
			return true
		}
	}
	return false
}

// probeKeys say what asks only whether the workload is well, or is no use of it.
func probeKeys() []Key {
	return []Key{
		setting[[]Filter]{
			name: "ignore", scope: ScopeWorkload, codec: filters, def: raw{},
			field: func(c *Config) *[]Filter { return &c.Ignore },
			doc: "Traffic that is no activity, by the workload's port, the other side's address, or both: such as what collects " +
				"its metrics. It goes both ways, and wakes a sleeper like all else.",
		}.key(),
		setting[[]Probe]{
			name: "probes", scope: ScopeWorkload, codec: probes, def: raw{},
			field: func(c *Config) *[]Probe { return &c.Probes },
			doc: "Questions over the network that only ask whether the workload is well. Those to a sleeper's held ports are " +
				"answered without a wake: HTTP with 200 and the header Hibernate-State: asleep, with 503 when it is blocked. " +
				"kubelet stands for those from the node itself that are HTTP or gRPC of its user agent, or connect and close; " +
				"gRPC's health protocol, whose path of others' is /grpc.health.v1.Health/Check, is answered SERVING, and NOT_SERVING " +
				"when it is blocked. Awake the workload answers, and they are no activity; connections from there are, once they have said " +
				"something else or last for longer than 10s.",
		}.key(),
		setting[[]string]{
			name: "probe-exec", scope: ScopeWorkload, codec: commands, def: raw{},
			field: func(c *Config) *[]string { return &c.ProbeExec },
			doc: "Commands by which others ask whether the workload is well, as nerdctl's health checks do: their arguments, with " +
				"spaces between them. For a sleeper they are answered with exit status 0, and 1 when it is blocked, without a " +
				"wake; awake they run, and are no activity.",
		}.key(),
	}
}

// Probe is a question over the network that asks only whether the workload is well. Kubelet's have no other fields; of others'
// Path is what they get by HTTP, and with none they connect and close again.
type Probe struct {
	Kubelet bool
	Port    uint16
	Path    string
	From    netip.Prefix
}

const kubelet = "kubelet"

// String is the probe as it is written.
func (p Probe) String() string {
	if p.Kubelet {
		return kubelet
	}
	return fmt.Sprintf("%d%s %s", p.Port, p.Path, Filter{From: p.From})
}

var probes = codec[[]Probe]{
	kind: fmt.Sprintf("a list of up to %d: kubelet, or others' such as 8080/health from 10.0.0.5, 5432 from 10.0.0.0/8", maxFilters),
	parse: func(r raw) ([]Probe, error) {
		var out []Probe
		for _, text := range items(r) {
			p, err := parseProbe(text)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			out = append(out, p)
		}
		if len(out) > maxFilters {
			return nil, fmt.Errorf("more than %d", maxFilters)
		}
		return out, nil
	},
	format: func(list []Probe) raw {
		out := raw{}
		for _, p := range list {
			out = append(out, p.String())
		}
		return out
	},
}

func parseProbe(text string) (p Probe, err error) {
	words := strings.Fields(text)
	switch {
	case text == kubelet:
		return Probe{Kubelet: true}, nil
	case len(words) != 3 || words[1] != "from":
		return p, errors.New("neither kubelet, nor a port or a port/path and from and a network")
	}
	number, path, ok := strings.Cut(words[0], "/")
	if ok {
		p.Path = "/" + path
	}
	if p.Port, err = port(number); err != nil {
		return p, err
	}
	p.From, err = network(words[2])
	return p, err
}

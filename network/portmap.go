package network

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Ports of the node that CNI's plugin portmap forwards to the pod are rules in the node's tables, where others' rules are, too: a
// firewall that is loaded anew takes them along, and nobody puts them back. The plugin does, asked again as CNI did; who asked
// first, and for what, is in CNI's cache.

// published is what CNI remembers of a pod whose ports its plugin portmap forwards.
type published struct {
	entry              string // file in libcni's cache
	network, container string
}

// RunPlugin executes a CNI plugin, as exec.Cmd's Run does.
type RunPlugin func(context.Context, *exec.Cmd) error

const (
	portmapPlugin = "portmap"
	pluginTimeout = 20 * time.Second
	// A DEL takes the rules away before its entry in the cache: what is missing is looked for again.
	missingFor = 500 * time.Millisecond
)

// pluginDirs are where distributions put CNI's plugins; CNI_PATH comes first.
var pluginDirs = []string{"/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni"}

// CheckPublished is the ladder's rung for the ports of the node: nil when CNI forwards none to the pod. A port that is missing is
// forwarded again, by run. It may take a while, as a program is run for it; a check alone takes the kernel a millisecond.
func (l *Link) CheckPublished(ctx context.Context, run RunPlugin) []Rung {
	p := l.attachment.published
	is4 := func(a netip.Prefix) bool { return a.Addr().Is4() }
	if p == nil || !slices.ContainsFunc(l.attachment.Addresses, is4) { // IPv6's rules alone are not looked at
		return nil
	}
	return []Rung{climb(stage{
		"port mapping",
		func() error { return l.checkPublished(p) },
		func() error { return l.publishAgain(ctx, p, run) },
	})}
}

// checkPublished looks for the rules of the plugin's two kinds. Those of the old iptables can't be told.
func (l *Link) checkPublished(p *published) error {
	if !p.remembered() { // CNI has taken the pod's network down, or is about to
		return nil
	}
	var found, unknown bool
	err := l.onNode(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if found, err = p.inIptables(c); err != nil || found {
			return err
		}
		if found, err = p.inNFT(c); err != nil || found {
			return err
		}
		legacy, err := filledHere()
		unknown = slices.Contains(legacy, "nat")
		return err
	})
	if err != nil {
		return fmt.Errorf("ports of the node: %w", err)
	}
	if !found && !unknown {
		return fmt.Errorf("the node forwards no port to the pod any more, but CNI was asked for %s", portList(l.attachment.PortMappings))
	}
	return nil
}

func portList(list []PortMapping) string {
	var words []string
	for _, m := range list {
		words = append(words, fmt.Sprintf("%d", m.HostPort))
	}
	return strings.Join(words, ", ")
}

func (p *published) remembered() bool {
	_, err := os.Stat(p.entry)
	return err == nil
}

// inIptables: a chain of the pod's own, whose name the plugin makes of the network's and the container's, and the jump to it.
func (p *published) inIptables(c *nftables.Conn) (bool, error) {
	nat := &nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4}
	sum := sha512.Sum512([]byte(p.network + p.container))
	own := fmt.Sprintf("CNI-DN-%x", sum)[:28]
	rules, err := rulesOf(c, nat, own)
	if err != nil || len(rules) == 0 {
		return false, err
	}
	const shared = "CNI-HOSTPORT-DNAT"
	for from, to := range map[string]string{shared: own, "PREROUTING": shared} {
		rules, err := rulesOf(c, nat, from)
		if err != nil || !slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return jumpsTo(r, to) }) {
			return false, err
		}
	}
	return true, nil
}

func jumpsTo(r *nftables.Rule, chain string) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && v.Chain == chain
	})
}

// inNFT: rules with the container's id for a comment.
func (p *published) inNFT(c *nftables.Conn) (bool, error) {
	t := &nftables.Table{Name: "cni_hostport", Family: nftables.TableFamilyIPv4}
	for _, chain := range []string{"hostports", "hostip_hostports"} {
		rules, err := rulesOf(c, t, chain)
		if err != nil || slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return commentOf(r) == p.container }) {
			return err == nil, err
		}
	}
	return false, nil
}

// rulesOf is empty for a chain that isn't there.
func rulesOf(c *nftables.Conn, t *nftables.Table, chain string) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return rules, err
}

// publishAgain has the plugin do what CNI asked of it. When CNI takes the pod down meanwhile, the plugin takes that back.
func (l *Link) publishAgain(ctx context.Context, p *published, run RunPlugin) error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(missingFor):
	}
	if l.checkPublished(p) == nil {
		return nil
	}
	call, err := p.call()
	if err != nil {
		return err
	}
	if err := call.do(ctx, "ADD", run); err != nil {
		return err
	}
	if !p.remembered() {
		return call.do(ctx, "DEL", run)
	}
	return nil
}

// pluginCall is what the plugin is given.
type pluginCall struct {
	path        string
	environment []string
	config      []byte
}

// entryOf is what is needed of an entry in libcni's cache.
type entryOf struct {
	Container    string          `json:"containerId"`
	Config       []byte          `json:"config"`
	Interface    string          `json:"ifName"`
	Namespace    string          `json:"netns"`
	Capabilities map[string]any  `json:"capabilityArgs"`
	Result       json.RawMessage `json:"result"`
}

func (p *published) call() (*pluginCall, error) {
	data, err := os.ReadFile(p.entry)
	if err != nil {
		return nil, fmt.Errorf("CNI's cache: %w", err)
	}
	var e entryOf
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("CNI's cache: %s: %w", p.entry, err)
	}
	version, plugin := portmapOf(e.Config)
	if plugin == nil {
		return nil, fmt.Errorf("CNI's cache: %s has no plugin %s", p.entry, portmapPlugin)
	}
	plugin["cniVersion"], plugin["name"], plugin["prevResult"] = version, p.network, e.Result
	plugin["runtimeConfig"] = map[string]any{"portMappings": e.Capabilities["portMappings"]}
	c := &pluginCall{}
	if c.config, err = json.Marshal(plugin); err != nil {
		return nil, err
	}
	dirs := append(filepath.SplitList(os.Getenv("CNI_PATH")), pluginDirs...)
	for _, d := range dirs {
		if info, err := os.Stat(filepath.Join(d, portmapPlugin)); err == nil && !info.IsDir() {
			c.path = filepath.Join(d, portmapPlugin)
			break
		}
	}
	if c.path == "" {
		return nil, fmt.Errorf("CNI's plugin %s is in none of %s; name its directory in CNI_PATH", portmapPlugin, strings.Join(dirs, ", "))
	}
	c.environment = append(os.Environ(), "CNI_CONTAINERID="+e.Container, "CNI_NETNS="+e.Namespace, "CNI_IFNAME="+e.Interface,
		"CNI_PATH="+strings.Join(dirs, string(filepath.ListSeparator)))
	return c, nil
}

// portmapOf finds the plugin in a network's configuration; nil when it isn't there.
func portmapOf(config []byte) (version string, plugin map[string]any) {
	var list struct {
		Version string           `json:"cniVersion"`
		Plugins []map[string]any `json:"plugins"`
	}
	if json.Unmarshal(config, &list) != nil {
		return "", nil
	}
	for _, one := range list.Plugins {
		if one["type"] == portmapPlugin {
			return list.Version, one
		}
	}
	return "", nil
}

func (c *pluginCall) do(ctx context.Context, command string, run RunPlugin) error {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(c.environment, "CNI_COMMAND="+command), bytes.NewReader(c.config), &out, &errs
	cmd.WaitDelay = time.Second
	if err := run(ctx, cmd); err != nil {
		return fmt.Errorf("CNI's plugin %s, %s: %w: %s%s", c.path, command, err, bytes.TrimSpace(out.Bytes()), bytes.TrimSpace(errs.Bytes()))
	}
	return nil
}

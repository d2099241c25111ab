package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// startLimit bounds the whole start, which takes some five seconds; stepLimit what answers at once.
	startLimit = 90 * time.Second
	stepLimit  = 30 * time.Second
)

// A Cluster is a Kubernetes of one node.
type Cluster struct {
	*harness.World
	// Node is the node's name.
	Node string

	dir      string
	programs map[string]*harness.Program
}

// Options are those of a world that a cluster can be made in, in which people say when pods sleep.
func Options() harness.Options {
	return harness.Options{
		CRI: true, Daemon: true, Published: true, Namespace: "k8s.io",
		PodAnnotations: []string{"io.kubernetes.*"}, Settings: map[string]string{"mode": `"manual"`},
	}
}

// Start makes one whose pods can run images, by their names in .tools/images. It returns when pods can be made.
func Start(ctx context.Context, w *harness.World, images ...string) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	c := &Cluster{World: w, Node: w.Name, dir: filepath.Join(w.Dir, "kubernetes"), programs: map[string]*harness.Program{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)))
		}
	}()
	if err := c.checkPrograms(); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		c.prepare,
		c.write,
		func(ctx context.Context) error { return c.serve(ctx, images) },
		func(ctx context.Context) error { return c.start(ctx, "etcd", "kube-apiserver") },
		func(ctx context.Context) error {
			return c.start(ctx, "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
		},
		c.ready,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) checkPrograms() error {
	for _, name := range append([]string{"etcd", "kubectl"}, servers...) {
		if c.World.Program(name) == name {
			return fmt.Errorf("%s is not built: run 'make test-kubernetes', or 'go run ./tools/toolchain kube'", name)
		}
	}
	return nil
}

// tunables are the sysctls that kubelet sets, as it wants them: it finds them so, and leaves the machine's alone.
var tunables = map[string]int{
	"vm/overcommit_memory": 1, "vm/panic_on_oom": 0,
	"kernel/panic": 10, "kernel/panic_on_oops": 1, "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}

// prepare gives the world what kubelet wants of its machine.
func (c *Cluster) prepare(ctx context.Context) error {
	var script strings.Builder
	fmt.Fprintf(&script, "mkdir -p %[1]s/sysctl %[1]s/log\nmount --bind %[1]s/log /var/log\n", c.dir)
	fmt.Fprintf(&script, "ip route add %s dev cni0\n", serviceNet) // as a default route would do
	for name, value := range tunables {
		file := filepath.Join(c.dir, "sysctl", strings.ReplaceAll(name, "/", "."))
		fmt.Fprintf(&script, "echo %d >%s\nmount --bind %s /proc/sys/%s\n", value, file, file, name)
	}
	// It wants its own control group in all of cgroup v1's hierarchies; one of cpuset is of no use before it has processors.
	fmt.Fprintf(&script, `
for c in /sys/fs/cgroup/*/; do
	case $c in */unified/) continue ;; esac
	[ -e "$c/cgroup.procs" ] && ! [ -e /sys/fs/cgroup/cgroup.procs ] || continue
	mkdir -p "$c/%[1]s"
	for f in cpuset.cpus cpuset.mems; do
		! [ -e "$c/$f" ] || cat "$c/$f" >"$c/%[1]s/$f"
	done
done
`, c.Name)
	_, err := c.Shell(ctx, script.String())
	return err
}

// serve serves images to the node's containerd, that of the sandboxes among them.
func (c *Cluster) serve(ctx context.Context, images []string) error {
	var args []string
	for _, name := range append([]string{"pause"}, images...) {
		archive, err := c.Image(name)
		if err != nil {
			return err
		}
		args = append(args, harness.Reference(name)+"="+archive)
	}
	registry, err := c.Registry(args...)
	if err != nil {
		return err
	}
	c.programs["registry"] = registry
	return registry.Start(ctx)
}

// start starts programs beside each other.
func (c *Cluster) start(ctx context.Context, names ...string) error {
	var g errgroup.Group
	for _, name := range names {
		p := c.prepared(name)
		c.programs[name] = p
		g.Go(func() error { return p.Start(ctx) })
	}
	return g.Wait()
}

// Program is one of the cluster's, by its name, as kubelet. It can be killed and started again.
func (c *Cluster) Program(name string) *harness.Program { return c.programs[name] }

// ready waits until a pod can be made, and run.
func (c *Cluster) ready(ctx context.Context) error {
	if err := c.Apply(ctx, map[string]any{
		"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": map[string]any{"name": "hibernate"}, "handler": "hibernate",
	}); err != nil {
		return err
	}
	return errors.Join(
		c.Until(ctx, "True", "get", "node", c.Node, "--output", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`),
		c.Until(ctx, "default", "get", "serviceaccount", "default", "--output", "jsonpath={.metadata.name}"),
	)
}

// Close ends the cluster and all of its pods, and leaves the world as it was.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var errs []error
	end := func(names ...string) {
		for _, name := range names {
			if p := c.programs[name]; p != nil {
				errs = append(errs, p.Kill())
			}
		}
	}
	end("kubelet", "kube-scheduler", "kube-controller-manager", "kube-proxy") // nothing makes pods any more
	errs = append(errs, c.removePods(ctx))
	end("kube-apiserver", "etcd", "registry")
	_, err := c.Shell(ctx, fmt.Sprintf(`
ip route del %[3]s 2>/dev/null || :
for family in ip ip6; do nft delete table $family kube-proxy 2>/dev/null || :; done
awk '{ print $5 }' /proc/self/mountinfo | grep -E '^(%[1]s/kubelet(/|$)|/var/log$|/proc/sys/(vm|kernel)/)' | sort -r | while read -r m; do umount "$m"; done
for c in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ ! -d "$c/%[2]s/kubepods" ] || find "$c/%[2]s/kubepods" -depth -type d -exec rmdir {} \;
done`, c.dir, c.Name, serviceNet))
	return errors.Join(append(errs, err)...)
}

// removePods removes all that CRI knows.
func (c *Cluster) removePods(ctx context.Context) error {
	if c.Containerd.Pid() == 0 {
		return nil
	}
	crictl := []string{"--config", filepath.Join(c.dir, "crictl.yaml")}
	if _, err := os.Stat(crictl[1]); err != nil {
		return nil // no pod was ever made
	}
	pods, err := c.Output(ctx, "crictl", append(crictl, "pods", "--quiet")...)
	if ids := strings.Fields(pods); err == nil && len(ids) > 0 {
		_, err = c.Output(ctx, "crictl", append(append(crictl, "rmp", "--force"), ids...)...)
	}
	return err
}

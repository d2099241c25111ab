package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/children"
	"github.com/hibernate-runtime/hibernate/daemon/leftover"
	local "github.com/hibernate-runtime/hibernate/snapshot"
)

const forkRunHelp = `

With --run each gets a container in containerd, made like the forked one's and started, and what is printed is its id, which is its
identity, and its addresses. Its network is made as the forked one's was: by CNI, where ctr run --cni did that; for one that was given a
network namespace name one for each with --netns. What ctr does to its own containers it does to these. If one of them can't be started
all are removed again. Containers of nerdctl and Kubernetes are refused: have them make the containers.`

// startAtOnce bounds how many containers are started at the same time.
const startAtOnce = 4

// forkRun is one run of fork --run.
type forkRun struct {
	*options
	socket string   // containerd's; empty: the one that has the parent
	netns  []string // one for each child, or none
}

// ranJSON is a container that was made.
type ranJSON struct {
	ID        string   `json:"id"`
	Identity  string   `json:"identity"`
	Addresses []string `json:"addresses"`
}

// run forks and starts the containers. fork makes the identities.
func (r forkRun) run(ctx context.Context, record handover.Record, names []string, fork func() (*shimv1.ForkResponse, error)) ([]ranJSON, *shimv1.ForkResponse, error) {
	dirs, err := r.cordonDirs()
	if err != nil {
		return nil, nil, err
	}
	dataDir := dirs[1]
	socket := r.socket
	if socket == "" {
		if socket, err = containerdOf(dataDir, record); err != nil {
			return nil, nil, err
		}
	}
	parent, err := children.Open(ctx, socket, record.Namespace, record.ID)
	if err != nil {
		return nil, nil, err
	}
	defer parent.Close()
	switch {
	case parent.NeedsNamespaces() && len(r.netns) == 0:
		return nil, nil, usageError{fmt.Errorf("%s was given a network namespace by its path: name one for each of the %d with --netns", record.ID, len(names))}
	case len(r.netns) > 0 && len(r.netns) != len(names):
		return nil, nil, usageError{fmt.Errorf("--netns names %d network namespaces, and there are %d to be made", len(r.netns), len(names))}
	}
	for _, name := range names {
		if err := parent.Free(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	f, err := fork()
	if err != nil {
		return nil, nil, err
	}
	if err := r.startAll(ctx, parent, names); err != nil {
		return nil, nil, errors.Join(err, forget(context.WithoutCancel(ctx), dataDir, r.runDir, f, names))
	}
	return r.ran(ctx, record.Namespace, names), f, nil
}

// startAll starts a container for each name, or leaves none.
func (r forkRun) startAll(ctx context.Context, parent *children.Parent, names []string) error {
	var mu sync.Mutex // guards all
	var all []*children.Made
	g, started := errgroup.WithContext(ctx)
	g.SetLimit(startAtOnce)
	for i, name := range names {
		g.Go(func() error {
			c := children.Child{ID: name, Annotations: map[string]string{"identity": name}}
			if len(r.netns) > 0 {
				c.NetNS = r.netns[i]
			}
			made, err := parent.Start(started, c)
			if err == nil {
				mu.Lock()
				all = append(all, made)
				mu.Unlock()
			}
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		return nil
	}
	for _, made := range all {
		err = errors.Join(err, made.Remove(ctx))
	}
	return err
}

// forget removes the identities that were made, and that no container is any more.
func forget(ctx context.Context, dataDir, runDir string, f *shimv1.ForkResponse, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	left, err := leftover.Find(dataDir, runDir)
	for _, l := range left {
		if l.Namespace != f.GetNamespace() || !slices.Contains(names, strings.TrimPrefix(l.Head.Identity, f.GetPodNamespace()+"/")) {
			continue
		}
		err = errors.Join(err, leftover.Remove(ctx, l, true))
	}
	return err
}

// containerdOf is the socket of the containerd that a workload's snapshots are noted to be of.
func containerdOf(dataDir string, record handover.Record) (string, error) {
	head, err := local.ReadHead(local.DirFor(dataDir, record.Namespace, record.ID, record.Identity))
	if err == nil && head.Containerd == "" {
		err = errors.New("it is not noted")
	}
	if err != nil {
		return "", usageError{fmt.Errorf("which containerd runs %s is not known (%w): name its socket with --containerd-address", record.ID, err)}
	}
	return head.Containerd, nil
}

// ran asks the shims of what was started for their addresses.
func (r forkRun) ran(ctx context.Context, namespace string, names []string) []ranJSON {
	all := make([]ranJSON, 0, len(names))
	for _, name := range names {
		one := ranJSON{ID: name, Identity: name, Addresses: []string{}}
		if record, err := handover.ReadRecord(r.runDir, namespace, name); err == nil {
			for _, a := range ask(ctx, record).GetStatus().GetAddresses() {
				address, _, _ := strings.Cut(a, "/")
				one.Addresses = append(one.Addresses, address)
			}
		}
		all = append(all, one)
	}
	return all
}

// printRan prints a line each.
func printRan(out io.Writer, all []ranJSON) error {
	for _, one := range all {
		if _, err := fmt.Fprintln(out, one.ID, orNone(strings.Join(one.Addresses, ","))); err != nil {
			return err
		}
	}
	return nil
}

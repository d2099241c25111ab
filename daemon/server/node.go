package server

import (
	"context"
	"errors"
	"slices"
	"strings"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Facts are what is known of the node; see package facts.
type Facts interface {
	Facts() map[string]string
	Runscs() (all []runsc.Kept, first bool, err error)
}

// Place is where a node's things are.
type Place struct {
	Name     string // of the node
	DataDir  string // "": snapshots aren't looked at
	RunscDir string
}

// Node implements the service.
func (a API) Node(context.Context, *daemonv1.NodeRequest) (*daemonv1.NodeResponse, error) {
	resp := &daemonv1.NodeResponse{Name: a.Place.Name, RunscDir: a.Place.RunscDir}
	if a.Facts == nil {
		return resp, nil
	}
	resp.Facts = a.Facts.Facts()
	kept, first, err := a.Facts.Runscs()
	for i, k := range kept {
		resp.Runscs = append(resp.Runscs, &daemonv1.Runsc{Version: k.Version, Sha256: k.SHA256, Path: k.Path, Sidecar: k.Sidecar, Configured: first && i == 0})
	}
	needed, nerr := a.needed()
	for who, r := range needed {
		one := find(resp.Runscs, r)
		if one == nil {
			one = &daemonv1.Runsc{Version: r.Version, Sha256: r.SHA256}
			resp.Runscs = append(resp.Runscs, one)
		}
		one.NeededBy = append(one.NeededBy, who)
	}
	for _, r := range resp.Runscs {
		slices.Sort(r.NeededBy)
	}
	slices.SortFunc(resp.Runscs[len(kept):], func(a, b *daemonv1.Runsc) int {
		return strings.Compare(a.GetVersion()+a.GetSha256(), b.GetVersion()+b.GetSha256())
	})
	if err = errors.Join(err, nerr); err != nil {
		resp.Error = err.Error()
	}
	return resp, nil
}

func find(all []*daemonv1.Runsc, r eligible.Runsc) *daemonv1.Runsc {
	i := slices.IndexFunc(all, func(o *daemonv1.Runsc) bool {
		return r.Is(eligible.Runsc{Version: o.GetVersion(), SHA256: o.GetSha256()})
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// needed are the runscs that snapshots on this node were made by, and that its sandboxes are of, by whose they are.
func (a API) needed() (map[string]eligible.Runsc, error) {
	all := make(map[string]eligible.Runsc)
	var failed error
	if a.Place.DataDir != "" {
		dirs, err := snapshot.List(a.Place.DataDir)
		failed = err
		for _, dir := range dirs {
			found, err := snapshot.Inspect(dir)
			if err != nil || found.Snapshot == nil {
				continue // it is gone meanwhile, or of use to nobody
			}
			m := found.Snapshot.Manifest()
			if m.Identity != "" {
				all[m.Namespace+"/identity="+m.Identity] = eligible.RunscOf(m)
			} else {
				all[node.Key{Namespace: m.Namespace, ID: m.ID}.String()] = eligible.RunscOf(m)
			}
		}
	}
	for _, w := range a.View.List() {
		s := w.Status()
		if s.GetSandboxPid() == 0 || s.GetRunscVersion() == "" {
			continue
		}
		who := w.Key.String()
		if s.GetIdentity() != "" {
			who = w.Namespace + "/identity=" + s.GetIdentity()
		}
		all[who] = eligible.Runsc{Version: s.GetRunscVersion(), SHA256: s.GetRunscSha256()}
	}
	return all, failed
}

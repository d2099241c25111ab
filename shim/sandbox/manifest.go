package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// facts are what the manifest says of runsc and the host. They cost some tens of milliseconds, so they are gathered beside
// the start of the container, and again only when the binary has changed.
type facts struct {
	done     chan struct{}
	version  string
	digest   string
	features []string
	err      error
}

// gatherFacts begins to learn about runsc and the CPU. stop ends that early; afterwards nothing writes to the workload's
// places any more.
func (w *Workload) gatherFacts() (stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
	w.facts.done = make(chan struct{})
	go func() {
		defer close(w.facts.done)
		defer cancel()
		var g errgroup.Group
		var failed [3]error
		g.Go(func() error { w.facts.version, failed[0] = w.runsc.Version(ctx); return nil })
		g.Go(func() error { w.facts.features, failed[1] = w.runsc.CPUFeatures(ctx); return nil })
		g.Go(func() error { w.facts.digest, failed[2] = w.runsc.Digest(); return nil })
		_ = g.Wait()
		w.facts.err = errors.Join(failed[:]...)
	}()
	return func(late context.Context) error {
		cancel()
		select {
		case <-w.facts.done:
			return nil
		case <-late.Done():
			return context.Cause(late)
		}
	}
}

// known waits for the facts, of the binary that is there now.
func (w *Workload) known(ctx context.Context) (*facts, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-w.facts.done:
	}
	if w.facts.err != nil {
		return nil, w.facts.err
	}
	version, err := w.runsc.Version(ctx)
	if err != nil {
		return nil, err
	}
	digest, err := w.runsc.Digest()
	if err != nil {
		return nil, err
	}
	features, err := w.runsc.CPUFeatures(ctx)
	return &facts{version: version, digest: digest, features: features}, err
}

// sameRunsc refuses to write a snapshot that no runsc here could restore: the binary was replaced since the sandbox was
// made, and what restores must be what has saved.
func (w *Workload) sameRunsc(ctx context.Context) error {
	known, err := w.known(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	mine := w.madeBy
	w.mu.Unlock()
	if mine.Is(known.of()) || w.stayWith(mine) {
		return nil
	}
	return &RefusedError{Reasons: []*shimv1.Reason{reason("runsc-replaced", fmt.Sprintf(
		"%s is now version %s, and the sandbox is of %s: its state could not be restored; start the container anew",
		w.runsc.Binary(), known.of(), mine))}}
}

// manifest describes the snapshot that is about to be committed.
func (w *Workload) manifest(ctx context.Context, sealed snapshot.Sealed) (snapshot.Manifest, error) {
	known, err := w.known(ctx)
	if err != nil {
		return snapshot.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	spec, err := json.Marshal(w.spec)
	if err != nil {
		return snapshot.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return snapshot.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	containers := []snapshot.Container{{ID: w.opts.ID, Name: w.opts.ID, Spec: spec, SpecDigest: digest, Image: w.image, RootfsKey: w.knownChainID()}}
	members, err := w.memberManifests()
	if err != nil {
		return snapshot.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	containers = append(containers, members...)
	if len(members) > 0 {
		digests := make([]string, 0, len(containers))
		for _, c := range containers {
			digests = append(digests, c.SpecDigest)
		}
		digest = snapshot.SpecsDigest(digests...)
	}
	attachment, err := json.Marshal(w.attachment)
	if err != nil {
		return snapshot.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	w.mu.Lock()
	ports, only4, epoch, given := w.ports, w.only4, w.epoch, w.given
	w.mu.Unlock()
	return snapshot.Manifest{
		Namespace: w.opts.Namespace, ID: w.opts.ID, Identity: w.identity, Epoch: epoch, Files: sealed.Files, SpecDigest: digest, Attachment: attachment, Ports: ports, Only4: only4,
		Touched: sealed.Touched(w.firstTouched()), Template: w.config.Template,
		Runtime: snapshot.Runtime{
			Version: known.version, SHA256: known.digest, Flags: w.runsc.Flags, Platform: w.config.Platform,
			CPUFeatures: given, PageSize: os.Getpagesize(), CacheLine: eligible.CacheLine(),
		},
		Host:       w.hostFacts(),
		Containers: containers,
	}, nil
}

// hostFacts is what gVisor does not check, kept to explain a failure. What can't be read stays empty.
func (w *Workload) hostFacts() snapshot.Host {
	h := snapshot.Host{
		Node: w.nodeName(), Architecture: runtime.GOARCH, BootID: firstLine("/proc/sys/kernel/random/boot_id"),
		THP: firstLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if w.attachment != nil {
		h.MTU = w.attachment.MTU
	}
	return h
}

// nodeName is the node's, as its snapshots have it.
func (w *Workload) nodeName() string {
	name, _ := os.Hostname()
	return cmp.Or(w.config.NodeName, name)
}

func firstLine(path string) string {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

// changedFields names what differs between the container's specification and the one of a snapshot.
func (w *Workload) changedFields(m snapshot.Manifest) []string {
	if len(m.Containers) == 0 {
		return []string{"containers"}
	}
	fields, err := snapshot.SpecDiff(m.Containers[0].Spec, w.spec)
	if err != nil {
		return []string{"unreadable: " + err.Error()}
	}
	return fields
}

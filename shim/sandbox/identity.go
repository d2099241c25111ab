package sandbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A workload with an *identity* goes on in whatever container has it next, here or on another node. Its name is the author's; its scope is
// not: containerd's namespace, and the pod's namespace as containerd's CRI plugin writes it, so that nobody reaches the memory of
// another tenant's workload. Neither part can have a slash, so that no two pairs make one identity.

// podNamespaceAnnotation is written by containerd's CRI plugin, over whatever a pod's author has written. Who talks to containerd
// directly may write it, too, and is root on the node.
const podNamespaceAnnotation = "io.kubernetes.cri.sandbox-namespace"

// containerNameAnnotation is the name that gVisor knows a container by.
const containerNameAnnotation = "io.kubernetes.cri.container-name"

var podNamespacePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// identityOf puts the pod's namespace before a name; "" without a name.
func identityOf(name string, annotations map[string]string) (string, error) {
	pod := annotations[podNamespaceAnnotation]
	switch {
	case name == "":
		return "", nil
	case pod == "":
		return name, nil
	case !podNamespacePattern.MatchString(pod):
		return "", fmt.Errorf("the pod's namespace, %q, is none that Kubernetes allows: an identity can't be within it", pod)
	}
	return pod + "/" + name, nil
}

func (w *Workload) findIdentity(_ context.Context, _ CreateRequest, _ *undo.Stack) (err error) {
	w.identity, err = identityOf(w.config.Identity, w.spec.Annotations)
	return err
}

// dropName has gVisor know a container with an identity by its place alone: its next container may have another name.
func dropName(spec *specs.Spec) { delete(spec.Annotations, containerNameAnnotation) }

// localDir is where the workload's snapshots are.
func (w *Workload) localDir() string {
	return snapshot.DirFor(w.config.DataDir, w.opts.Namespace, w.opts.ID, w.identity)
}

// whoHas names the container that has the workload's snapshots open, and says what to do. Without an identity that is an earlier shim of
// this very container, and the error stays as it is.
func (w *Workload) whoHas(err error) error {
	var busy *snapshot.BusyError
	if w.identity == "" || !errors.As(err, &busy) {
		return err
	}
	name := fmt.Sprintf("process %d", busy.Pid)
	records, _ := handover.ListRecords(w.config.RunDir)
	for _, r := range records {
		if r.Pid == busy.Pid {
			name = "container " + r.Namespace + "/" + r.ID
		}
	}
	return fmt.Errorf("%w: %s is the workload %s on this node, and one at a time may be: delete that container first, or give this one another "+
		"identity: %w", ErrPrecondition, name, w.identity, err)
}

// Package sandbox is one workload: its gVisor sandbox, its containers, its network and its snapshot, and how they are
// made, put to sleep, woken and taken down.
//
// A *workload* owns containers. It is in one state of lifecycle.Workload at a time; what leads from one to the next is
// a *transition*, a hibernation or a wake, made of named *steps* that are journalled and timed. Start and restore are
// separate paths from the top down (start.go, wake.go).
//
// Locking: Workload.mu guards memory only and is never held across runsc, the network or the disk, so State, Pids,
// Stats and Status answer at once whatever a transition is doing.
package sandbox

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/journal"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Workload is what hibernates. Make one with Create.
type Workload struct {
	opts    Options
	places  places
	config  *config.Config
	runsc   *runsc.Client
	local   *snapshot.Local
	journal *journal.Journal
	holder  *holder
	podNS   *os.File // the pod's network namespace, for whoever dials into it
	group   *cgroup.Group

	// askRight asks the node's daemon whether the workload may run.
	askRight func(context.Context, *rightsv1.ClaimRequest) (*rightsv1.ClaimResponse, error)
	// tellUnused tells it that nothing ran.
	tellUnused  func(context.Context, *rightsv1.UnusedRequest) error
	leaseSleeps sync.Mutex // one sleep or wake by the lease at a time

	helper   string
	sidecar  *runsc.Sidecar // nil: there is none
	oomScore int            // of the sandbox: a refusal of runsc's own attempt would fail its start
	spawned  bool           // the sandbox is born in its control group, and runsc leaves groups alone
	identity string         // with the pod's namespace before it, where there is one; "": none
	spec     *specs.Spec    // as runsc sees it: frozen at Create
	image    string
	hooks    *specs.Hooks
	created  time.Time
	facts    facts
	lower    rootfs
	tiered   atomic.Bool      // the daemon has, or had, a durable tier
	export   *snapshot.Export // what Start restores; nil: it starts, or wakes what an earlier shim left

	stopMemory func() // ends the watch for want of memory, and waits for it

	ghosts  sync.Mutex // one change of what ghosts have at a time, and no boot meanwhile
	sharing sharing    // of the processor time among a pod's members

	background sync.WaitGroup // ladders, trims and the watch over the link; Delete waits for them

	// Set at Start, before the workload can hibernate, and never after.
	link        *network.Link // nil: the sandbox is not behind an inner link
	attachment  *network.Attachment
	fixedReason *shimv1.Reason
	origin      *origin // of the snapshot that Start restores, until it has; nil else

	gateMu    sync.Mutex // one flip of the gate and one change of the listeners at a time; held across netlink, nothing else
	listeners map[uint16]*os.File
	drain     *drainer
	passing   *wakeproxy.Proxy // of connections that no daemon passes on; nil before there are any
	removed   bool             // the link is gone
	keeping   bool             // keep-alives are still answered for an awake sandbox, since that could not be ended

	changed chan struct{} // the link is to be looked at; see watchLink

	mu         sync.Mutex // guards the fields below; never held across runsc, network or disk
	state      lifecycle.Workload
	since      time.Time
	containers []*Container
	joined     []*Container // members that are inside, in the order in which they joined
	gathering  *gathering   // the members that a snapshot's restore waits for; nil else
	changing   int          // members that are being started, or taken out
	transition *transition
	generation int // counts sandboxes: tells the exit of an earlier one apart
	sandboxPid int
	ahead      *ahead           // somebody is at work on the standby; nil else
	recent     [often]time.Time // the latest wakes, oldest first
	loading    *loading         // the sandbox runs, and its memory still comes; nil when all is there
	touched    touched          // what was asked for first when it was restored
	madeBy     eligible.Runsc   // what made the sandbox
	given      []string         // features of the CPU that it sees; nil before it has run
	expected   bool             // the sandbox's end is our own doing
	killed     bool             // by SIGKILL: it is about to end
	stopping   bool             // it sleeps, or is about to, since it was asked to stop: nothing wakes it
	fencing    bool             // it may not run here any more: no transition begins
	right      *right           // to run; nil while it doesn't, and without an identity
	grant      string           // names what was asked for, until something has run under it; "": nothing was
	ran        bool             // something has run since it was asked for
	epoch      uint64           // the highest that it had a right under
	leaseSlept bool             // it was put to sleep by the node's lease
	// Somebody keeps to the node's lease.
	leaseWatched bool
	kills        uint64       // for want of memory, as far as they were told
	signals      []keptSignal // to a paused container, delivered when it goes on
	busy         int          // requests that need the sandbox awake until they are done
	// A checkpoint is being written; closed when it is done, nil without one.
	checkpointing chan struct{}
	resumed       chan struct{} // closed when a sleeper that a user paused is resumed; nil when there is none
	knocked       string        // what came for such a one: a packet, or input
	lastInput     time.Time     // a client wrote to a standard input
	inputWakes    bool          // somebody wakes it for that
	ports         []uint16      // of TCP, that it listens on; nil while they are not known
	only4         []uint16      // those of ports that take no IPv6
	gate          string
	cut           cut
	syncing       map[string]<-chan struct{} // sources whose file systems the kernel was asked to write; closed when it has
	lastUse       string                     // whose packet was counted last; see network.Use
	leases        map[string]time.Time
	watchers      watchers
	saved         saved
	cameFrom      string         // node that has sent the snapshot, until a wake has told
	waits         string         // what a wake waits for; "" when it does not
	foreseen      *foreseen      // nil once it is used
	mends         []*shimv1.Rung // what Status tells of, besides the ladders of wakes
	last          struct{ hibernate, wake *shimv1.Transition }
	wakes         uint64
	sleeps        uint64
	stopped       bool               // the poststop hooks have run
	stopWatch     context.CancelFunc // ends the watch for packets; nil when there is none
	forward       *forwarding        // of connections from inside the pod's namespace; nil before Start, and without a link
	probing       *visitors          // from where probes come; nil where none are expected
	stopMending   context.CancelFunc // ends the watch over the link; nil when there is none
	unlinked      bool               // the sandbox's end of the link is gone: only another sandbox gets the new one
}

// saved tells of the newest snapshot.
type saved struct {
	sequence, bytes uint64
	lineage         string
}

// Root returns the workload's first container.
func (w *Workload) root() *Container { return w.containers[0] }

// container returns the container of that id. The caller holds w.mu.
func (w *Workload) container(id string) (*Container, error) {
	for _, c := range w.containers {
		if c.ID == id && c.state != lifecycle.Deleted {
			return c, nil
		}
	}
	return nil, ErrNotFound
}

// move applies e to the workload's state, and tells the watchers. The caller holds w.mu. An illegal event changes
// nothing.
func (w *Workload) move(e lifecycle.WorkloadEvent, t *shimv1.Transition) error {
	next, err := w.state.Next(e)
	if err != nil {
		return err
	}
	w.state, w.since = next, w.opts.Now()
	w.announce(t)
	return nil
}

// stateFile is what `delete` finds of a workload whose shim is gone. It names all that lives outside the shim.
type stateFile struct {
	Version    int      `json:"version"` // stateVersion; 0: of before there were pods
	Namespace  string   `json:"namespace"`
	ID         string   `json:"id"`
	Identity   string   `json:"identity,omitempty"`
	RunDir     string   `json:"run_dir"`
	Runsc      string   `json:"runsc"`
	RunscRoot  string   `json:"runsc_root"`
	RunscFlags []string `json:"runsc_flags"`
	Inner      string   `json:"inner,omitempty"` // path of the inner namespace
	Pod        string   `json:"pod,omitempty"`   // path of a pod namespace that outlives the container
	Inode      uint64   `json:"pod_inode"`       // of the pod namespace: finds a second workload in the same one
	Cgroup     string   `json:"cgroup"`          // as given to cgroup.Load
	Rootfs     string   `json:"rootfs"`          // mount point
	Snapshot   string   `json:"snapshot"`        // directory of the local tier
	Shim       process  `json:"shim"`
	Holder     process  `json:"holder"`
	Sandbox    process  `json:"sandbox"`
	Ending     *ending  `json:"ending,omitempty"` // hooks that are still to be run
	Linked     bool     `json:"linked"`

	Attachment *network.Attachment `json:"attachment,omitempty"` // what the link was made for
	Member     *memberFile         `json:"member,omitempty"`     // nil: a workload's root
}

// stateVersion is what this shim writes. Fields that a later one adds are passed over by an earlier one.
const stateVersion = 1

func (w *Workload) saveState() error {
	w.mu.Lock()
	pid, stopped := w.sandboxPid, w.stopped
	w.mu.Unlock()
	s := stateFile{
		Version: stateVersion, Namespace: w.opts.Namespace, ID: w.opts.ID, Identity: w.identity, RunDir: w.config.RunDir,
		Runsc: w.runsc.Binary(), RunscRoot: w.runsc.Root, RunscFlags: w.runsc.Flags,
		Inner: w.innerPath(), Cgroup: w.group.Path(), Rootfs: w.places.rootfs(),
		Snapshot: w.local.Dir(), Shim: identify(os.Getpid()), Linked: w.link != nil, Attachment: w.attachment,
	}
	if w.holder != nil { // there is none yet while the container is created
		s.Holder, s.Inode, s.Pod = w.holder.process, w.holder.podInode, w.holder.given
	}
	if pid != 0 {
		s.Sandbox = identify(pid)
	}
	if !stopped {
		s.Ending = w.ending()
	}
	return writeJSON(w.places.state(), s)
}

// Package rights is what a shim and the node's daemon agree on about who may run a workload with an identity: the classes of
// refusals (the requests are api/rights/v1's), and the node's *lease*, a file in the run directory that the daemon writes again
// each time the store has confirmed that the node lives.
//
// The lease is how a node stops what it may no longer run with nobody's help: another node takes over only after the lease has
// ended by its own clock and a margin has passed. The shim puts its workload to sleep at Sleep, and ends the sandbox at
// End, whatever the daemon does.
package rights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Classes of refusals.
const (
	// Unavailable: the store can't be asked now. It is worth another try.
	Unavailable = "unavailable"
	// Owned: another node has the right, and lives, or may still live. It is worth another try.
	Owned = "owned"
	// NoStore: there is none, or one that can't fence. The identity is this node's own.
	NoStore = "no-store"
	// Refused: a person must look: a wrong key, a head that was put back, a workload that was destroyed.
	Refused = "refused"
)

// leaseName is the file's, in the run directory.
const leaseName = "lease.json"

// Lease says until when a node may run what it has claimed. Times are since boot (CLOCK_BOOTTIME), which goes on while the
// machine is suspended.
type Lease struct {
	Node  string        `json:"node"`
	Sleep time.Duration `json:"sleep"` // from then on its workloads are put to sleep
	End   time.Duration `json:"end"`   // from then on nothing runs
	// Boot is the machine's boot that the times are of: WriteLease fills it in, ReadLease knows no lease of another one.
	Boot string `json:"boot"`
}

// ErrNoLease: the node has none.
var ErrNoLease = errors.New("the node has no lease")

// ReadLease reads the lease of a run directory. ErrNoLease when there is none.
func ReadLease(runDir string) (l Lease, err error) {
	data, err := os.ReadFile(filepath.Join(runDir, leaseName))
	if errors.Is(err, fs.ErrNotExist) {
		return l, ErrNoLease
	}
	if err != nil {
		return l, fmt.Errorf("read the node's lease: %w", err)
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("read the node's lease: %w", err)
	}
	if l.Boot != bootID() {
		return Lease{}, ErrNoLease
	}
	return l, nil
}

// bootID is the kernel's, random for each boot.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // there is no Linux without it
	return strings.TrimSpace(string(id))
}

// WriteLease replaces the lease of a run directory.
func WriteLease(runDir string, l Lease) error {
	l.Boot = bootID()
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(runDir, leaseName), append(data, '\n'), 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("write the node's lease: %w", err)
	}
	return nil
}

// SinceBoot is the time by the lease's clock.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails only for clocks that aren't there
	return time.Duration(ts.Nano())
}

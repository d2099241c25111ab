package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hibernate-runtime/hibernate/api/pages"
)

// A wake chooses between the snapshot on the node and those in the store. What it knows of them grows while it does: a *survey* is
// that, and its choice a pure function of it.

// version tells snapshots apart. Higher is newer.
type version struct{ epoch, sequence uint64 }

func (v version) compare(o version) int {
	return cmp.Or(cmp.Compare(v.epoch, o.epoch), cmp.Compare(v.sequence, o.sequence))
}

// survey is what a wake knows so far.
type survey struct {
	want   uint64 // a person asks for this one; 0: the newest is to be restored
	newest uint64 // that was ever committed, as far as the node knows
	older  bool   // policy: where that can't be restored, an older one may be

	local    version // zero: its manifest can't be read
	localBad error   // why it can't be restored: it is corrupt, or missing
	here     bool    // the local one is there, and not known to be bad
	number   uint64  // of its directory, when it is there at all

	asked     bool      // the store was
	stored    []version // what it has, the newest first
	storedErr error     // why that can't be told
	spoilt    map[uint64]error
	differs   bool   // the store's snapshot of the local one's number is another one
	heeded    bool   // the right to run has told what the store has
	ranOn     string // why what there is is older than the workload was; "": it is all of it
}

// choice is what to do next: exactly one of ask, local, sequence and err is set.
type choice struct {
	ask      bool // the store, for want, or its newest
	local    bool
	sequence uint64 // of the store's
	older    bool   // than the newest that was committed
	err      error
	stop     bool // no policy applies to err: a person must look
}

// Errors of a choice.
var (
	// ErrDiverged: two different snapshots have one number. Both are kept.
	ErrDiverged = errors.New("the snapshot on the node and the one in the store differ, and have one number")
	// ErrNotThere: neither the node nor the store has the snapshot.
	ErrNotThere = errors.New("there is no such snapshot")
)

func (s survey) choose() choice {
	if s.differs {
		return choice{stop: true, err: fmt.Errorf("%w, %d: neither is restored, and both are kept; look at both (hibernatectl snapshots show), and "+
			"move the directory of the one that is wrong away, or remove it from the store", ErrDiverged, s.local.sequence)}
	}
	if s.want != 0 {
		return s.chooseWanted()
	}
	if s.ranOn != "" && !s.older {
		return choice{err: fmt.Errorf("%s; what it was before is kept (with restore-older = true it goes on from that)", s.ranOn)}
	}
	if s.here && s.local.sequence >= s.newest && !s.asked {
		return choice{local: true, older: s.ranOn != ""}
	}
	if !s.asked {
		return choice{ask: true}
	}
	if s.stops() {
		return choice{stop: true, err: s.failure("")}
	}
	best, where := s.best()
	switch {
	case where == "":
		return choice{err: s.failure("")}
	case best.sequence < s.newest && !s.older:
		return choice{err: s.failure(fmt.Sprintf("snapshot %d is there, and is older (hibernatectl wake --from %d restores it; with restore-older = true "+
			"that is done unasked)", best.sequence, best.sequence))}
	case where == "node":
		return choice{local: true, older: best.sequence < s.newest || s.ranOn != ""}
	}
	return choice{sequence: best.sequence, older: best.sequence < s.newest || s.ranOn != ""}
}

// best is the newest that may be good; of equal ones the node's.
func (s survey) best() (best version, where string) {
	if s.here {
		best, where = s.local, "node"
	}
	for _, v := range s.stored {
		if s.spoilt[v.sequence] == nil && (where == "" || v.compare(best) > 0) {
			best, where = v, "store"
		}
	}
	return best, where
}

func (s survey) chooseWanted() choice {
	older := s.want < s.newest
	if s.here && s.local.sequence == s.want {
		return choice{local: true, older: older}
	}
	if !s.asked {
		return choice{ask: true}
	}
	has := slices.ContainsFunc(s.stored, func(v version) bool { return v.sequence == s.want })
	switch {
	case s.storedErr != nil:
		return choice{stop: s.stops(), err: s.failure("")}
	case s.spoilt[s.want] != nil:
		return choice{err: fmt.Errorf("snapshot %d in the store: %w", s.want, s.spoilt[s.want])}
	case !has:
		return choice{err: fmt.Errorf("%w: %d; %s", ErrNotThere, s.want, s.list())}
	}
	return choice{sequence: s.want, older: older}
}

// list tells a person what there is.
func (s survey) list() string {
	var all []string
	for _, v := range s.stored {
		all = append(all, strconv.FormatUint(v.sequence, 10))
	}
	text := "the store has none"
	if len(all) > 0 {
		text = "the store has " + strings.Join(all, ", ")
	}
	if s.here {
		text += fmt.Sprintf(", the node has %d", s.local.sequence)
	}
	return text
}

// stops is true when the store's answer is none that time or another snapshot mends.
func (s survey) stops() bool {
	return s.storedErr != nil && pages.ClassOf(s.storedErr) == pages.Refused
}

// failure says why nothing is restored.
func (s survey) failure(more string) error {
	err := s.localBad
	if err == nil {
		err = fmt.Errorf("%w: %d", ErrNotThere, s.newest)
	}
	if e := s.storedErr; e != nil && pages.ClassOf(e) != pages.NoStore {
		err = fmt.Errorf("%w; in the store: %w", err, e)
	}
	for _, v := range s.stored {
		if e := s.spoilt[v.sequence]; e != nil {
			err = fmt.Errorf("%w; snapshot %d in the store: %w", err, v.sequence, e)
		}
	}
	if more != "" {
		err = fmt.Errorf("%w; %s", err, more)
	}
	return err
}

package lifecycle

// Workload is the state of what hibernates: a pod, or a container outside a pod.
type Workload int

// The states of a workload.
const (
	Awake Workload = iota
	Hibernating
	Asleep
	Waking
	Blocked // a wake failed, and policy says to keep the snapshot and wait for a person
	Ended
	workloadStates
)

// WorkloadEvent is what may happen to a workload.
type WorkloadEvent int

// The events of a workload.
const (
	Hibernate WorkloadEvent = iota // a hibernation begins
	Abort                          // it is undone: the sandbox goes on
	Commit                         // its snapshot is committed: it sleeps
	Wake                           // a wake begins
	Woke                           // the sandbox runs again, restored or cold-started
	Block                          // the wake failed and the snapshot is kept
	Postpone                       // the wake may not be now: it sleeps on
	Lose                           // its sandbox ended, since its memory could not be loaded after a wake
	End                            // it exited, was killed, or was deleted
	workloadEvents
)

var workloadNames = [...]string{"awake", "hibernating", "asleep", "waking", "blocked", "ended"}
var workloadEventNames = [...]string{"hibernate", "abort", "commit", "wake", "woke", "block", "postpone", "lose", "end"}

var workloadTable = map[Workload]map[WorkloadEvent]Workload{
	Awake:       {Hibernate: Hibernating, Lose: Waking, End: Ended},
	Hibernating: {Abort: Awake, Commit: Asleep, End: Ended},
	Asleep:      {Wake: Waking, End: Ended},
	Waking:      {Woke: Awake, Block: Blocked, Postpone: Asleep, End: Ended},
	Blocked:     {Wake: Waking, End: Ended},
}

func (s Workload) String() string      { return name(workloadNames[:], int(s)) }
func (e WorkloadEvent) String() string { return name(workloadEventNames[:], int(e)) }

// Next returns the state after e, or an *IllegalError and the state as it was.
func (s Workload) Next(e WorkloadEvent) (Workload, error) {
	if next, ok := workloadTable[s][e]; ok {
		return next, nil
	}
	return s, &IllegalError{Kind: "workload", State: s.String(), Event: e.String()}
}

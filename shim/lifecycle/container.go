package lifecycle

// Container is the state of one container as containerd sees it. A sleeping container is Running.
type Container int

// The states of a container.
const (
	Created Container = iota
	Running
	Paused
	Stopped
	Deleted
	containerStates
)

// ContainerEvent is what may happen to a container.
type ContainerEvent int

// The events of a container.
const (
	Start ContainerEvent = iota
	Pause
	Resume
	Exit
	Delete
	containerEvents
)

var containerNames = [...]string{"created", "running", "paused", "stopped", "deleted"}
var containerEventNames = [...]string{"start", "pause", "resume", "exit", "delete"}

var containerTable = map[Container]map[ContainerEvent]Container{
	Created: {Start: Running, Exit: Stopped, Delete: Deleted},
	Running: {Pause: Paused, Exit: Stopped},
	Paused:  {Resume: Running, Exit: Stopped},
	Stopped: {Delete: Deleted},
}

func (s Container) String() string      { return name(containerNames[:], int(s)) }
func (e ContainerEvent) String() string { return name(containerEventNames[:], int(e)) }

// Next returns the state after e, or an *IllegalError and the state as it was.
func (s Container) Next(e ContainerEvent) (Container, error) {
	if next, ok := containerTable[s][e]; ok {
		return next, nil
	}
	return s, &IllegalError{Kind: "container", State: s.String(), Event: e.String()}
}

func name(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "unknown"
	}
	return names[i]
}

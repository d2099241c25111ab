// Package lifecycle holds the two tables that say what may happen next: one for a container, as containerd sees it,
// and one for a workload, as it sleeps and wakes. They are pure: effects live in package sandbox.
//
//	next, err := lifecycle.Awake.Next(lifecycle.Hibernate) // Hibernating, nil
//	_, err = lifecycle.Ended.Next(lifecycle.Wake)          // *IllegalError
package lifecycle

import "fmt"

// IllegalError says that an event can't happen in a state. It changes nothing.
type IllegalError struct {
	Kind  string // "container" or "workload"
	State string
	Event string
}

func (e *IllegalError) Error() string {
	return fmt.Sprintf("%s is %s: %s is not possible now", e.Kind, e.State, e.Event)
}

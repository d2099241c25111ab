package daemon

import "github.com/hibernate-runtime/hibernate/snapshot/eligible"

// ability is what this node can restore, as far as it is known.
func ability(Options) func() eligible.Ability { return eligible.Here }

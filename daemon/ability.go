package daemon

import "github.com/hibernate-runtime/hibernate/snapshot/eligible"

// ability is what this node can restore, as far as it is known.
func ability(opts Options) func() eligible.Ability {
	if opts.Facts != nil {
		return opts.Facts.Ability
	}
	return eligible.Here
}

package sandbox

import "testing"

// The node's own snapshot, chosen before the right came, isn't restored when that came with another node's newer one.
func TestWhatCameOvertakes(t *testing.T) {
	w := claimant(t)
	view := survey{here: true, local: version{1, 1}, number: 1, newest: 1}
	for received, want := range map[string]bool{"": false, "/somewhere": true} {
		w.right = &right{epoch: 2, whole: true, received: received, from: "node-b"}
		if got := w.overtakes(view)(); got != want {
			t.Errorf("received %q: overtaken %t", received, got)
		}
	}
}

package ctl

import (
	"strings"
	"time"
)

// namesTheUser wants to be told whose traffic keeps a workload awake, and how long ago there was some.
func (n *node) namesTheUser(id string) {
	n.t.Helper()
	var out string
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		n.greeted(id)
		out, _ = n.ctl(0, "why-awake", id)
		if strings.Contains(out, "last traffic ") && strings.Contains(out, "(tcp ") &&
			strings.Contains(out, n.ClientIP()+":") && strings.Contains(out, ":7001") {
			return
		}
	}
	n.t.Errorf("nobody is named:\n%s", out)
}

module github.com/hibernate-runtime/hibernate/sidecar

go 1.26.8

// The gVisor of the runsc that it serves, tools/runsc.mod: their protocol is internal to gVisor and changes with it.
require (
	golang.org/x/sys v0.48.0
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
)

require (
	golang.org/x/exp v0.0.0-20250711185948-6ae5c78190dc // indirect
	golang.org/x/time v0.15.0 // indirect
)

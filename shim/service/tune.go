package service

import (
	"runtime"
	"runtime/debug"
)

// containerd's library makes a shim as small as it can be: no more than two threads of Go code, and a collection as soon as
// the heap has grown by two fifths. Here both cost more than they save. While a snapshot is checked, or read, two threads are
// at work, and a call would wait for one of them; and a collection, which has to stop all threads, takes many milliseconds
// where sandboxes use all processors. A sleeping shim gives its memory back anyhow (shim/trim).
const (
	threads    = 4
	heapGrowth = 100 // percent
)

func tune() {
	runtime.GOMAXPROCS(max(threads, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(heapGrowth)
}

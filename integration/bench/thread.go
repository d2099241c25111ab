package main

import "runtime"

// A thread runs functions one after the other on one thread of the system, in namespaces of its own.
type thread struct{ work chan func() }

// newThread starts a thread after enter has moved it. It ends with close.
func newThread(enter func() error) (*thread, error) {
	t := &thread{work: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for fn := range t.work {
			fn()
		}
	}()
	return t, <-entered
}

// do returns when fn has.
func (t *thread) do(fn func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); fn() }
	<-done
}

func (t *thread) close() { close(t.work) }

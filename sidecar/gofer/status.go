package gofer

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

// event is one line of what the shim is told.
type event struct {
	Event   string // started, mended; then one of loaded, failed, and left: the sandbox went away before it had all
	Pid     int    `json:",omitempty"`
	File    string `json:",omitempty"`
	Chunk   int    `json:",omitempty"`
	Corrupt bool   `json:",omitempty"` // the bytes are wrong; else they could not be read
	Reason  string `json:",omitempty"`
	Bytes   int64  `json:",omitempty"` // handed to the sandbox
}

// status tells the shim what becomes of the load. Its end tells the end of this process.
type status struct {
	mu   sync.Mutex // guards the fields below
	fifo *os.File   // nil: nobody wants to know
	over bool       // what became of the load was told
}

// openStatus opens the shim's FIFO. A shim that is gone is told nothing; the sandbox is loaded all the same.
func openStatus(path string) (*status, error) {
	if path == "" {
		return &status{}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ENXIO) {
		return &status{}, nil
	}
	if err != nil {
		return nil, err
	}
	return &status{fifo: f}, nil
}

// tell sends an event. After the load's end nothing else is told.
func (s *status) tell(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = e.Event != "started" && e.Event != "mended"
	if s.fifo == nil {
		return
	}
	if line, err := json.Marshal(e); err == nil {
		_, _ = s.fifo.Write(append(line, '\n')) // below PIPE_BUF: whole or not at all
	}
}

// mended tells of a chunk that was not right where it should be, and was read from elsewhere. -1: all of the file.
func (s *status) mended(file string, chunk int, why error) {
	s.tell(event{Event: "mended", File: file, Chunk: chunk, Reason: why.Error()})
}

// fail tells of an error before the sandbox can notice it.
func (s *status) fail(file string, err error) {
	e := event{Event: "failed", File: file, Reason: err.Error()}
	var corrupt *pages.CorruptError
	if errors.As(err, &corrupt) {
		e.Corrupt, e.Chunk = true, corrupt.Chunk
	}
	s.tell(e)
}

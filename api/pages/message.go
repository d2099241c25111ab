package pages

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// SocketName is the socket's, in the run directory.
const SocketName = "pages.sock"

// Socket of a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, SocketName) }

const (
	// MaxRead is how much one read may ask for, in bytes.
	MaxRead = 1 << 20
	// MaxRequest and MaxAnswer bound a message, without what follows an answer.
	MaxRequest = 256 << 10
	MaxAnswer  = 256 << 10
	// MaxDocument bounds a manifest.json.
	MaxDocument = 64 << 20
	// MaxFirst is how many chunks a request may expect.
	MaxFirst = 16 << 10
)

// Ops.
const (
	OpLook   = "look"
	OpOpen   = "open"
	OpAttach = "attach"
	OpExpect = "expect"
	OpRead   = "read"
	OpPin    = "pin"
	OpClose  = "close"
)

// Workload says whose snapshots are meant: as in the head of its directory in the local tier.
type Workload struct {
	Namespace string
	ID        string
	Identity  string `json:",omitempty"`
	Lineage   string `json:",omitempty"`
}

// Request asks for something.
type Request struct {
	Op       string
	Workload *Workload `json:",omitempty"` // look, open, pin
	Sequence uint64    `json:",omitempty"` // look, open: 0 is the newest; pin
	First    []int     `json:",omitempty"` // open, attach, expect: chunks of pages.img of 1 MiB
	Ahead    bool      `json:",omitempty"` // open, attach: all of pages.img is going to be read
	Ticket   string    `json:",omitempty"` // attach
	File     string    `json:",omitempty"` // read
	Offset   int64     `json:",omitempty"` // read
	Length   int       `json:",omitempty"` // read
}

// Answer to a request. What isn't named is empty.
type Answer struct {
	Class string `json:",omitempty"` // of Error; empty: it went well
	Error string `json:",omitempty"`
	Bytes int    `json:",omitempty"` // that follow: open, read

	Name        string       `json:",omitempty"` // look, open: of the lineage in the store
	Ticket      string       `json:",omitempty"` // look, open
	Sequence    uint64       `json:",omitempty"` // look: the newest that was committed, as far as is known; open: which it is
	Epoch       uint64       `json:",omitempty"` // look: of this node's claim; open: of the generation
	Generations []Generation `json:",omitempty"` // open: all that there are, the newest first
}

// Generation is a snapshot that the store has.
type Generation struct{ Sequence, Epoch uint64 }

// Classes of errors.
const (
	// Unavailable: the store or the daemon can't answer now. It is worth another try.
	Unavailable = "unavailable"
	// NoStore: none is configured.
	NoStore = "no-store"
	// None: the store has no such generation, or nothing of the workload.
	None = "none"
	// Corrupt: what is in the store isn't what was written.
	Corrupt = "corrupt"
	// Refused: the store, the key, the claim, or the object is not the one: nothing may be restored before a person has looked.
	Refused = "refused"
	// Invalid: the request is wrong.
	Invalid = "invalid"
)

// Error is what the daemon has answered instead.
type Error struct{ Class, Message string }

func (e *Error) Error() string { return e.Message }

// ClassOf is an error's class: Unavailable for all that is no answer of the daemon's.
func ClassOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Unavailable
}

// WriteMessage writes a message of at most limit bytes.
func WriteMessage(w io.Writer, v any, limit int) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > limit {
		return fmt.Errorf("a message of %d bytes: at most %d are taken", len(data), limit)
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data)))
	_, err = w.Write(append(out, data...))
	return err
}

// ReadMessage reads a message of at most limit bytes. io.EOF when there is none.
func ReadMessage(r io.Reader, v any, limit int) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(limit) {
		return fmt.Errorf("a message of %d bytes: at most %d are taken", n, limit)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return noEOF(err)
	}
	return json.Unmarshal(data, v)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

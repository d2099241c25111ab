package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// Version of the messages. A higher one means that what an older receiver
// ignores can't be ignored.
const Version = 1

const (
	maxMessage         = 64 << 10
	maxFiles           = 1 + 4096
	maxFilesPerMessage = 200 // the kernel takes 253
)

// Errors of both sides.
var (
	// ErrMalformed: a message could not be understood, or its descriptors
	// don't fit what it says. The connection is still good.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge: too many ports or too long names for one hello.
	ErrTooLarge = errors.New("message too large")
	// ErrVersion: the other side speaks a later version.
	ErrVersion = errors.New("unknown version of the message")
	// ErrRefused: the daemon did not take the hello; the text says why.
	ErrRefused = errors.New("the daemon refused")
	// ErrEnded: the shim said that its workload has ended. The connection is
	// still good.
	ErrEnded = errors.New("the workload has ended")
	// ErrGone: the other side closed the connection or died.
	ErrGone = errors.New("the other side is gone")
	// ErrCredentials: the other side is neither root nor our own user.
	ErrCredentials = errors.New("the other side is another user")
	// ErrInUse: another daemon serves the socket.
	ErrInUse = errors.New("another daemon is running")
)

// Hello is what a shim registers. Its files are the pod's network namespace,
// then one listening socket for each of Ports, in their order.
type Hello struct {
	Namespace string     `json:"namespace"` // containerd's
	ID        string     `json:"id"`        // of the workload
	Address   string     `json:"address"`   // of the shim's ttrpc socket, unix:///…
	Pid       int        `json:"pid"`       // of the shim
	Version   string     `json:"version"`   // of the shim's program
	Target    netip.Addr `json:"target"`    // the pod's address, where to dial
	Ports     []uint16   `json:"ports"`
	// PodPath is where the pod's network namespace is found as long as it is
	// in use; "" when it goes with the container.
	PodPath string `json:"pod_path,omitempty"`
}

// valid returns ErrMalformed when h can't be a hello with so many files.
func (h Hello) valid(files int) error {
	if err := validName(h.Namespace); err != nil {
		return fmt.Errorf("%w: namespace: %w", ErrMalformed, err)
	}
	if err := validName(h.ID); err != nil {
		return fmt.Errorf("%w: id: %w", ErrMalformed, err)
	}
	if files != 1+len(h.Ports) {
		return fmt.Errorf("%w: %d descriptors for a namespace and %d ports", ErrMalformed, files, len(h.Ports))
	}
	return nil
}

// validName tells whether a name can be part of a path.
func validName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is no name", name)
	}
	return nil
}

// Types of messages.
const (
	typeHello = "hello" // shim → daemon
	typeFiles = "files" // shim → daemon: more descriptors of the hello before
	typePing  = "ping"  // shim → daemon
	typeEnded = "ended" // shim → daemon: the workload has ended; without an answer
	typeKept  = "kept"  // daemon → shim: listening sockets, before the ack of a hello
	typeAck   = "ack"   // daemon → shim: answers a hello or a ping
)

// message is one packet.
type message struct {
	Version  int      `json:"version"`
	Type     string   `json:"type"`
	Sequence uint64   `json:"sequence,omitempty"` // ties an ack, and what is kept, to its hello
	Hello    *Hello   `json:"hello,omitempty"`
	Files    int      `json:"files,omitempty"` // of the hello, in all packets
	Ports    []uint16 `json:"ports,omitempty"` // of the descriptors of kept
	OK       bool     `json:"ok,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func (m message) encode() ([]byte, error) {
	m.Version = Version
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes, at most %d fit", ErrTooLarge, len(data), maxMessage)
	}
	return data, nil
}

func decode(data []byte) (message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if m.Version > Version {
		return m, fmt.Errorf("%w %d, known is %d", ErrVersion, m.Version, Version)
	}
	return m, nil
}

// CloseFiles closes descriptors that Receive gave, nil ones left out.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

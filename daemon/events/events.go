// Package events is the node's log of transitions, on its disk: what became of each hibernation and wake, and which workloads ended
// or left. Whoever reads it goes on from a cursor, the sequence number of the last event that it has had.
//
// The log is a directory of segments, each named after its first number. A line is the CRC-32C of its JSON in eight hexadecimal
// digits, a space, and the JSON. A line that was torn, by a death or a full disk, is cut off when the log is opened. Old segments go
// when there are too many, or when their newest event is too old; numbers never count anew, so a reader sees by a gap that it was away
// for too long.
//
// What Since returns is synced before, so that a number that anybody has seen is never given to another event, whatever happens to
// the node's power.
package events

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
)

// Event is one line of the log.
type Event struct {
	Seq        uint64  `json:"seq"`
	TimeMs     int64   `json:"time_unix_ms"`
	Namespace  string  `json:"namespace"`
	ID         string  `json:"id"`
	Identity   string  `json:"identity,omitempty"`
	What       string  `json:"what"`
	Kind       string  `json:"kind,omitempty"`       // of the transition: hibernate, wake
	Transition string  `json:"transition,omitempty"` // its id
	Reason     string  `json:"reason,omitempty"`
	Outcome    string  `json:"outcome,omitempty"`
	Detail     string  `json:"detail,omitempty"`
	Ms         float64 `json:"ms,omitempty"`
	ImageBytes uint64  `json:"image_bytes,omitempty"`
}

// What became of a transition, in one word, by its kind and outcome as shims tell them.
func What(kind, outcome string) string {
	if kind == "wake" {
		switch outcome {
		case "restored", "restored-older":
			return "woken"
		case "cold-started":
			return "cold"
		case "failed":
			return "lost"
		}
	}
	return outcome
}

// Ended and Removed are no transitions: a workload's task has ended; its shim has left the node.
const (
	Ended   = "ended"
	Removed = "removed"
)

// maxDetail bounds the text of an event, in bytes.
const maxDetail = 2048

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes a line.
func encode(e Event) ([]byte, error) {
	if len(e.Detail) > maxDetail {
		e.Detail = e.Detail[:maxDetail] + "…"
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(text, castagnoli), text), nil
}

// decode reads a line without its end; ok is false of one that is not whole.
func decode(line []byte) (e Event, ok bool) {
	if len(line) < 10 || line[8] != ' ' {
		return e, false
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	if err != nil || uint32(sum) != crc32.Checksum(line[9:], castagnoli) || json.Unmarshal(line[9:], &e) != nil {
		return e, false
	}
	return e, e.Seq > 0
}

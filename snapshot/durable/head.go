package durable

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// State is what may be done with the workload.
type State string

// The states of a head.
const (
	Running   State = "running"   // its owner runs it; nobody's, it has ended
	Restoring State = "restoring" // its owner is about to run it
	Asleep    State = "asleep"    // nobody's: the newest generation is the workload
	Deleted   State = "deleted"   // destroyed on purpose
)

// Head is the one object of a lineage that changes. docs/FORMAT.md describes each field.
type Head struct {
	Revision    uint64       `json:"rev"`
	Nonce       string       `json:"nonce"`
	Time        time.Time    `json:"time"`
	Lineage     string       `json:"lineage"`
	Key         *WrappedKey  `json:"key,omitempty"` // nil: destroyed
	Epoch       uint64       `json:"epoch"`
	State       State        `json:"state"`
	Owner       *Owner       `json:"owner,omitempty"`
	Last        string       `json:"last,omitempty"` // the node that released it last
	Restoring   uint64       `json:"restoring,omitempty"`
	Next        uint64       `json:"next"`
	Generations []Generation `json:"generations,omitempty"`
	Collections uint64       `json:"collections,omitempty"`
	Condemned   []Condemned  `json:"condemned,omitempty"`
}

// WrappedKey is a data key as a KeyWrapper gave it.
type WrappedKey struct {
	ID      string `json:"id"`
	Wrapped []byte `json:"wrapped"`
}

// Owner may run the workload.
type Owner struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"` // random, of the node's data directory; of a process that has none, of that
	Claim       string `json:"claim"`       // random for each claim
}

// Generation is a snapshot that can be restored.
type Generation struct {
	Sequence uint64    `json:"sequence"`
	Epoch    uint64    `json:"epoch"`
	Created  time.Time `json:"created"`
	Manifest string    `json:"manifest"`
	SHA256   string    `json:"sha256"`
	Size     int64     `json:"size"` // bytes of the manifest
	Digest   string    `json:"digest"`
	Image    int64     `json:"image"` // bytes of the files
	Sent     int64     `json:"sent"`  // bytes of new objects
	Fetch    int64     `json:"fetch"` // bytes to read for a restore
	Chain    int       `json:"chain"` // generations since a full upload
	Pinned   bool      `json:"pinned,omitempty"`
}

// Condemned is a list of names that are going to be deleted.
type Condemned struct {
	Number uint64    `json:"number"`
	Name   string    `json:"name"`
	SHA256 string    `json:"sha256"`
	Time   time.Time `json:"time"` // by the store's clock
}

// Newest is the generation that a restore takes.
func (h Head) Newest() (Generation, bool) {
	if len(h.Generations) == 0 {
		return Generation{}, false
	}
	return h.Generations[0], true
}

// Generation finds one by its sequence; 0 is the newest.
func (h Head) Generation(sequence uint64) (Generation, bool) {
	if sequence == 0 {
		return h.Newest()
	}
	i := slices.IndexFunc(h.Generations, func(g Generation) bool { return g.Sequence == sequence })
	if i < 0 {
		return Generation{}, false
	}
	return h.Generations[i], true
}

func (h Head) has(manifest string) bool {
	return slices.ContainsFunc(h.Generations, func(g Generation) bool { return g.Manifest == manifest })
}

// clone lets a change work on slices of its own.
func (h Head) clone() Head {
	h.Generations, h.Condemned = slices.Clone(h.Generations), slices.Clone(h.Condemned)
	return h
}

const (
	headFormat     = "hibernate.durable-head"
	maxHead        = 1 << 20 // bytes
	maxGenerations = 256
)

type headDocument struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	MAC     string          `json:"mac,omitempty"`
	Body    json.RawMessage `json:"body"`
}

// encodeHead gives the object of a head; k is nil for a tombstone.
func encodeHead(name string, h Head, k *keys) ([]byte, error) {
	body, err := line(h)
	if err != nil {
		return nil, fmt.Errorf("encode head: %w", err)
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	doc := headDocument{Format: headFormat, Version: formatVersion, Body: body}
	if k != nil {
		doc.MAC = hex.EncodeToString(headMAC(name, formatVersion, body, k))
	}
	return line(doc)
}

func headMAC(name string, version int, body []byte, k *keys) []byte {
	m := hmac.New(sha256.New, k.headMAC)
	m.Write([]byte(headFormat + "\x00" + strconv.Itoa(version) + "\x00" + name + "\x00"))
	m.Write(body)
	return m.Sum(nil)
}

// line is JSON without HTML escapes, and a line end.
func line(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// parsedHead is a head whose MAC was not compared yet.
type parsedHead struct {
	Head
	body []byte
	mac  []byte
}

func parseHead(name string, data []byte) (parsedHead, error) {
	object := headsPrefix + name
	var doc headDocument
	if err := json.Unmarshal(data, &doc); err != nil {
		return parsedHead{}, corrupt(object, "not a JSON document: %v", err)
	}
	if doc.Format != headFormat {
		return parsedHead{}, corrupt(object, "format is %q, want %q", doc.Format, headFormat)
	}
	if doc.Version > formatVersion {
		return parsedHead{}, &snapshot.VersionError{Document: object, Found: doc.Version, Known: formatVersion}
	}
	if doc.Version < 1 {
		return parsedHead{}, corrupt(object, "format version %d", doc.Version)
	}
	p := parsedHead{body: doc.Body}
	var err error
	if p.mac, err = hex.DecodeString(doc.MAC); err != nil {
		return parsedHead{}, corrupt(object, "its MAC is not hex")
	}
	if err := json.Unmarshal(doc.Body, &p.Head); err != nil {
		return parsedHead{}, corrupt(object, "body: %v", err)
	}
	if err := p.Head.check(); err != nil {
		return parsedHead{}, corrupt(object, "%v", err)
	}
	return p, nil
}

func (h Head) check() error {
	switch {
	case h.Revision == 0 || len(h.Nonce) != 32:
		return fmt.Errorf("revision %d, nonce of %d digits", h.Revision, len(h.Nonce))
	case !slices.Contains([]State{Running, Restoring, Asleep, Deleted}, h.State):
		return fmt.Errorf("state is %q", h.State)
	case (h.Key == nil) != (h.State == Deleted):
		return fmt.Errorf("state is %s, and that doesn't go with its key", h.State)
	case len(h.Generations) > maxGenerations:
		return fmt.Errorf("%d generations", len(h.Generations))
	}
	for i, g := range h.Generations {
		if i > 0 && !h.Generations[i-1].newer(g) {
			return fmt.Errorf("generations are not ordered at %d", g.Sequence)
		}
		n, ok := parseObjectName(g.Manifest)
		if !ok || n.kind != manifestKind || n.sequence != g.Sequence {
			return fmt.Errorf("generation %d has a manifest %q", g.Sequence, g.Manifest)
		}
		if g.Sequence >= h.Next {
			return fmt.Errorf("generation %d, and the next is %d", g.Sequence, h.Next)
		}
	}
	for _, c := range h.Condemned {
		if !listPattern.MatchString(c.Name) || c.Number > h.Collections {
			return fmt.Errorf("list of condemned %q, number %d of %d", c.Name, c.Number, h.Collections)
		}
	}
	return nil
}

func (g Generation) newer(than Generation) bool {
	return g.Epoch > than.Epoch || g.Epoch == than.Epoch && g.Sequence > than.Sequence
}

// verify compares the MAC.
func (p parsedHead) verify(name string, k *keys) error {
	if p.Lineage != k.lineage.String() {
		return fmt.Errorf("%s%s: %w: its key is of lineage %s, and it says %s", headsPrefix, name, ErrForeign, k.lineage, p.Lineage)
	}
	if !hmac.Equal(p.mac, headMAC(name, formatVersion, p.body, k)) {
		return corrupt(headsPrefix+name, "it was not written by anybody who has the key, or for another workload: restore it from a version that the store still has, and look for who changed it")
	}
	return nil
}

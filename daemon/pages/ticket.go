package pages

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// ticket says what may be read by it. It is given out with a signature.
type ticket struct {
	Workload pages.Workload
	Sequence uint64
	Manifest string `json:",omitempty"` // "": whatever generation has that sequence
}

// key tells sessions apart.
type key struct {
	workload pages.Workload
	sequence uint64 // 0: the newest, as long as it isn't known which that is
	open     uint64 // tells those apart
}

// errTicket: it was not given out by this node.
var errTicket = errors.New("not a ticket of this node's")

func (s *Server) mac(data []byte) []byte {
	m := hmac.New(sha256.New, s.opts.Secret)
	m.Write([]byte("hibernate.ticket\x00"))
	m.Write(data)
	return m.Sum(nil)
}

func (s *Server) sign(t ticket) string {
	data, _ := json.Marshal(t) // strings and numbers
	return base64.RawURLEncoding.EncodeToString(append(s.mac(data), data...))
}

func (s *Server) verify(text string) (t ticket, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) < sha256.Size || !hmac.Equal(data[:sha256.Size], s.mac(data[sha256.Size:])) {
		return t, errTicket
	}
	if err := json.NewDecoder(bytes.NewReader(data[sha256.Size:])).Decode(&t); err != nil || t.Sequence == 0 {
		return t, errTicket
	}
	return t, nil
}

const secretLength = 32

// Secret is what signs the tickets of a node: one that lies in dir, so that they outlive the daemon, or a new one.
func Secret(dir string) ([]byte, error) {
	path := filepath.Join(dir, "tickets.key")
	if data, err := os.ReadFile(path); err == nil && len(data) == secretLength {
		return data, nil
	}
	data := make([]byte, secretLength)
	_, _ = rand.Read(data) // never fails
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return data, fmt.Errorf("keep the key of tickets: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o600, atomicfile.Options{Sync: true}); err != nil {
		return data, fmt.Errorf("keep the key of tickets: %w", err)
	}
	return data, nil
}

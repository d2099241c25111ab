package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Self is what the data directory says of this node. A data directory of another name's is another node's.
type Self struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Term        string `json:"term,omitempty"` // the last that began
}

// selfPath is beside the notes about the store.
func selfPath(dir string) string { return filepath.Join(dir, "node") }

// LoadSelf reads who this node is, or makes that up and writes it down. dir is where the notes about the store are.
func LoadSelf(dir, node string) (s Self, err error) {
	data, err := os.ReadFile(selfPath(dir))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && len(data) == 0 {
		return s, fmt.Errorf("who this node is: %w", err)
	}
	if err == nil && s.Node == node && s.Incarnation != "" {
		return s, nil
	}
	s = Self{Node: node, Incarnation: durable.NewIncarnation()}
	return s, s.save(dir)
}

func (s Self) save(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("note who this node is: %w", err)
	}
	if err := atomicfile.Write(selfPath(dir), append(data, '\n'), 0o600, atomicfile.Options{Sync: true}); err != nil {
		return fmt.Errorf("note who this node is: %w", err)
	}
	return nil
}

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
)

// forge changes a document of a snapshot, checksum and all, and gives back what was there.
func forge(t *testing.T, path, old, changed string) (was []byte) {
	t.Helper()
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Format  string          `json:"format"`
		Version int             `json:"version"`
		CRC32C  string          `json:"crc32c"`
		Body    json.RawMessage `json:"body"`
	}
	if err := json.Unmarshal(was, &d); err != nil || !bytes.Contains(d.Body, []byte(old)) {
		t.Fatalf("%s has no %s: %v", path, old, err)
	}
	d.Body = bytes.Replace(d.Body, []byte(old), []byte(changed), 1)
	sum := crc32.Checksum(d.Body, crc32.MakeTable(crc32.Castagnoli))
	text := fmt.Sprintf("{\"format\":%q,\"version\":%d,\"crc32c\":\"%08x\",\"body\":%s}\n", d.Format, d.Version, sum, d.Body)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return was
}

// What was given features that this node's CPU lacks is not started here, and not lost by it.
func TestAnotherCPU(t *testing.T) {
	n := newNode(t, nil)
	n.forget(t, "db")
	c := n.run(t, mood{}, identified("db"))
	c.counts(1)
	c.leave()
	manifest := filepath.Join(n.local("db"), "1", "manifest.json")
	was := forge(t, manifest, `"cpu_features":[`, `"cpu_features":["of_tomorrow",`)
	c = n.create(t, mood{}, identified("db"))
	err := c.tryStart()
	c.notStarted(err, "can't restore it", "the CPU", "of_tomorrow")
	if err := os.WriteFile(manifest, was, 0o600); err != nil {
		t.Fatal(err)
	}
	c = n.run(t, mood{}, identified("db"))
	c.began("restored")
	c.counts(2)
	c.end()
}

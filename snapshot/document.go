package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
)

// castagnoli is the polynomial of CRC32C, which the CPU computes.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// document is the envelope of every JSON file of the format. The version is
// readable whatever the body has become; the checksum is over the bytes of
// the body as they stand in the file.
type document struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	CRC32C  string          `json:"crc32c"`
	Body    json.RawMessage `json:"body"`
}

// maxDocument bounds what is read into memory: 64 MiB, about 5 TiB of image.
const maxDocument = 64 << 20

// encodeDocument is deterministic: equal bodies give equal bytes.
func encodeDocument(format string, version int, body any) ([]byte, error) {
	raw, err := compactJSON(body)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", format, err)
	}
	return compactJSONLine(document{
		Format:  format,
		Version: version,
		CRC32C:  fmt.Sprintf("%08x", crc32.Checksum(raw, castagnoli)),
		Body:    raw,
	})
}

// decodeDocument fills body, ignoring fields it does not know. Errors are
// ErrVersion for a newer document, else ErrCorrupt.
func decodeDocument(data []byte, name, format string, known int, body any) error {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return corrupt(name, "not a JSON document: %v", err)
	}
	if doc.Format != format {
		return corrupt(name, "format is %q, want %q", doc.Format, format)
	}
	if doc.Version > known {
		return &VersionError{Document: name, Found: doc.Version, Known: known}
	}
	if doc.Version < 1 {
		return corrupt(name, "format version %d", doc.Version)
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(doc.Body, castagnoli)); sum != doc.CRC32C {
		return corrupt(name, "checksum is %s, want %q", sum, doc.CRC32C)
	}
	if err := json.Unmarshal(doc.Body, body); err != nil {
		return corrupt(name, "body: %v", err)
	}
	return nil
}

func readDocument(path, name, format string, known int, body any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxDocument {
		return corrupt(name, "larger than %d bytes", maxDocument)
	}
	return decodeDocument(data, name, format, known, body)
}

func compactJSON(v any) ([]byte, error) {
	line, err := compactJSONLine(v)
	return bytes.TrimSuffix(line, []byte("\n")), err
}

// compactJSONLine is json.Marshal with a newline and without HTML escapes.
func compactJSONLine(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

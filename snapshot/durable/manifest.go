package durable

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// maxManifest bounds a manifest's plaintext, in bytes.
const maxManifest = 256 << 20

// maxChain is how many generations follow a full upload at most.
const maxChain = 7

// manifest says where the pages of a snapshot's files are.
type manifest struct {
	Name     string    `json:"name"`
	Lineage  string    `json:"lineage"`
	Sequence uint64    `json:"sequence"`
	Epoch    uint64    `json:"epoch"`
	Created  time.Time `json:"created"`
	Chain    int       `json:"chain"`
	Parent   uint64    `json:"parent,omitempty"`
	Packs    []pack    `json:"packs"`
	Files    []file    `json:"files"`

	document []byte
}

// pack is an object with pages.
type pack struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Salt   string `json:"salt"`
	Pages  int    `json:"pages"`
	Frames []int  `json:"frames"` // stored length of each
}

type file struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Root string `json:"root"`

	extents []extent
}

// extent is a run of pages of a file that follow each other in a pack, too.
type extent struct {
	page  int64 // the first
	count int64
	pack  int32 // zeros: nowhere
	slot  int32
}

const zeros = -1

// Sections of a manifest.
const (
	descriptionSection = 1
	documentSection    = 2
	extentsSection     = 3
	// 4: frames, 5: what XOR frames are based on; reserved
	skippedSections = 128
)

func (m *manifest) encode() ([]byte, error) {
	description, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	var out []byte
	for i, s := range [][]byte{description, m.document, m.encodeExtents()} {
		out = append(out, byte(descriptionSection+i))
		out = binary.AppendUvarint(out, uint64(len(s)))
		out = append(out, s...)
	}
	if len(out) > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes, at most %d can be kept: the image is too large or too scattered", len(out), maxManifest)
	}
	return out, nil
}

func (m *manifest) encodeExtents() []byte {
	var out []byte
	for _, f := range m.Files {
		out = binary.AppendUvarint(out, uint64(len(f.extents)))
		end := int32(0)
		for _, e := range f.extents {
			out = binary.AppendUvarint(out, uint64(e.count))
			out = binary.AppendUvarint(out, uint64(e.pack+1))
			if e.pack != zeros {
				out = binary.AppendVarint(out, int64(e.slot)-int64(end))
				end = e.slot + int32(e.count)
			}
		}
	}
	return out
}

// decodeManifest is for untrusted bytes, too: it allocates no more than a small multiple of them.
func decodeManifest(object string, data []byte) (*manifest, error) {
	sections, err := splitSections(object, data)
	if err != nil {
		return nil, err
	}
	m := &manifest{document: sections[documentSection]}
	if err := json.Unmarshal(sections[descriptionSection], m); err != nil {
		return nil, corrupt(object, "description: %v", err)
	}
	for i := range m.Packs {
		if err := m.Packs[i].check(); err != nil {
			return nil, corrupt(object, "pack %d: %v", i, err)
		}
	}
	if err := m.decodeExtents(sections[extentsSection]); err != nil {
		return nil, corrupt(object, "%v", err)
	}
	return m, nil
}

func splitSections(object string, data []byte) (map[byte][]byte, error) {
	sections := make(map[byte][]byte, 3)
	for want := byte(descriptionSection); len(data) > 0; {
		which := data[0]
		length, n := binary.Uvarint(data[1:])
		if n <= 0 || length > uint64(len(data)-1-n) {
			return nil, corrupt(object, "section %d is longer than the manifest", which)
		}
		content := data[1+n : 1+n+int(length)]
		data = data[1+n+int(length):]
		switch {
		case which >= skippedSections:
		case which == want:
			sections[which] = content
			want++
		case which > extentsSection:
			return nil, &snapshot.VersionError{Document: fmt.Sprintf("%s (section %d)", object, which), Found: formatVersion + 1, Known: formatVersion}
		default:
			return nil, corrupt(object, "section %d where %d belongs", which, want)
		}
	}
	if len(sections) != extentsSection {
		return nil, truncated(object, "%d sections, want %d", len(sections), extentsSection)
	}
	return sections, nil
}

func (p *pack) check() error {
	n, ok := parseObjectName(p.Name)
	if !ok || n.kind != packKind {
		return fmt.Errorf("name is %q", p.Name)
	}
	if p.Pages < 1 || p.Pages > packPages || len(p.Frames) != (p.Pages+framePages-1)/framePages {
		return fmt.Errorf("%d pages in %d frames", p.Pages, len(p.Frames))
	}
	if len(p.Salt) != 64 || len(p.SHA256) != 64 {
		return fmt.Errorf("salt and SHA-256 have %d and %d digits", len(p.Salt), len(p.SHA256))
	}
	size := int64(headerLength + p.indexLength())
	for i, l := range p.Frames {
		if l < minFrame || l > maxFrame {
			return fmt.Errorf("frame %d has %d bytes", i, l)
		}
		size += int64(l)
	}
	if size != p.Size {
		return fmt.Errorf("%d bytes, and its parts have %d", p.Size, size)
	}
	return nil
}

// indexLength is what the frame with the hashes takes.
func (p *pack) indexLength() int { return 1 + len(pageHash{})*p.Pages + tagLength }

// pagesIn is how many pages frame i has.
func (p *pack) pagesIn(i int) int { return min(framePages, p.Pages-i*framePages) }

// offsets of the frames in the object, and of the hashes behind them.
func (p *pack) offsets() []int64 {
	out := make([]int64, 0, len(p.Frames)+1)
	at := int64(headerLength)
	for _, l := range p.Frames {
		out = append(out, at)
		at += int64(l)
	}
	return append(out, at)
}

// object is the pack's name and key, as its header must be.
func (p *pack) object(k *keys) *sealed {
	n, _ := parseObjectName(p.Name)
	salt, _ := hex.DecodeString(p.Salt)
	return objectWith(k, n, salt)
}

func (m *manifest) decodeExtents(data []byte) error {
	number := func() (uint64, bool) {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return 0, false
		}
		data = data[n:]
		return v, true
	}
	for i := range m.Files {
		f := &m.Files[i]
		if f.Name == "" || f.Size < 0 || f.Size > 1<<50 || i > 0 && f.Name <= m.Files[i-1].Name {
			return fmt.Errorf("file %q of %d bytes", f.Name, f.Size)
		}
		count, ok := number()
		if !ok || count > uint64(len(data)/2) {
			return fmt.Errorf("extents of %s: %d of them in %d bytes", f.Name, count, len(data))
		}
		f.extents = make([]extent, 0, count)
		total, page, end := pagesOf(f.Size), int64(0), int64(0)
		for range count {
			pages, ok1 := number()
			which, ok2 := number()
			if !ok1 || !ok2 || pages < 1 || pages > uint64(total-page) || which > uint64(len(m.Packs)) {
				return fmt.Errorf("extents of %s: %d pages of pack %d at page %d of %d", f.Name, pages, which, page, total)
			}
			e := extent{page: page, count: int64(pages), pack: int32(which) - 1}
			if e.pack != zeros {
				step, n := binary.Varint(data)
				if n <= 0 || step < -packPages || step > packPages {
					return fmt.Errorf("extents of %s: slot at page %d", f.Name, page)
				}
				data = data[n:]
				slot := end + step
				end = slot + e.count
				if slot < 0 || end > int64(m.Packs[e.pack].Pages) {
					return fmt.Errorf("extents of %s: slots %d to %d of %d", f.Name, slot, end, m.Packs[e.pack].Pages)
				}
				e.slot = int32(slot)
			}
			f.extents = append(f.extents, e)
			page += e.count
		}
		if page != total {
			return fmt.Errorf("extents of %s: %d pages of %d", f.Name, page, total)
		}
	}
	if len(data) != 0 {
		return fmt.Errorf("%d bytes behind the extents", len(data))
	}
	return nil
}

// appendExtent makes an extent longer where the page follows, and begins another where it doesn't.
func appendExtent(to []extent, page int64, pack, slot int32) []extent {
	if n := len(to); n > 0 {
		last := &to[n-1]
		if last.pack == pack && (pack == zeros || last.slot+int32(last.count) == slot) {
			last.count++
			return to
		}
	}
	return append(to, extent{page: page, count: 1, pack: pack, slot: slot})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Of the local tier's envelope, docs/FORMAT.md.
const (
	documentName   = "manifest.json"
	documentFormat = "hibernate.manifest"
	maxDocument    = 64 << 20
)

// parseDocument reads a local tier's manifest.
func parseDocument(data []byte) (snapshot.Manifest, error) {
	var doc struct {
		Format  string          `json:"format"`
		Version int             `json:"version"`
		CRC32C  string          `json:"crc32c"`
		Body    json.RawMessage `json:"body"`
	}
	var m snapshot.Manifest
	err := json.Unmarshal(data, &doc)
	switch {
	case err != nil:
		return m, corrupt(documentName, "not a JSON document: %v", err)
	case doc.Format != documentFormat:
		return m, corrupt(documentName, "format is %q, want %q", doc.Format, documentFormat)
	case doc.Version > snapshot.ManifestVersion:
		return m, &snapshot.VersionError{Document: documentName, Found: doc.Version, Known: snapshot.ManifestVersion}
	case doc.CRC32C != fmt.Sprintf("%08x", crc32.Checksum(doc.Body, castagnoli)):
		return m, corrupt(documentName, "its checksum is not %q", doc.CRC32C)
	}
	if err := json.NewDecoder(bytes.NewReader(doc.Body)).Decode(&m); err != nil {
		return m, corrupt(documentName, "body: %v", err)
	}
	m.Version = doc.Version
	for i, f := range m.Files {
		if f.Name == "" || f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == ".." || i > 0 && f.Name <= m.Files[i-1].Name {
			return m, corrupt(documentName, "file name %q", f.Name)
		}
		if f.Size < 0 || int64(len(f.CRC32C)) != (f.Size+snapshot.ChunkSize-1)/snapshot.ChunkSize {
			return m, corrupt(documentName, "%q has %d bytes and %d checksums", f.Name, f.Size, len(f.CRC32C))
		}
	}
	return m, nil
}

// fits compares the two lists of files.
func (m *manifest) fits(doc snapshot.Manifest) error {
	if m.Sequence != doc.Sequence || len(m.Files) != len(doc.Files) {
		return fmt.Errorf("snapshot %d with %d files, and its %s is of %d with %d", m.Sequence, len(m.Files), documentName, doc.Sequence, len(doc.Files))
	}
	for i, f := range doc.Files {
		if g := m.Files[i]; g.Name != f.Name || g.Size != f.Size {
			return fmt.Errorf("%s has %d bytes, and by %s %s has %d", g.Name, g.Size, documentName, f.Name, f.Size)
		}
	}
	return nil
}

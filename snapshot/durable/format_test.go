package durable

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// reader reads a snapshot from docs/FORMAT.md alone, without anything of this package: what it can't read isn't documented,
// and a change that it doesn't follow needs a new version.
type formatReader struct {
	t       *testing.T
	objects func(name string) []byte
	name    string
	data    []byte // the key
}

func (r *formatReader) key(salt []byte, info string) []byte {
	k, err := hkdf.Key(sha256.New, r.data, salt, info, 32)
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

func opened(t *testing.T, key, nonce, frame, aad []byte) []byte {
	t.Helper()
	b, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	g, err := cipher.NewGCM(b)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := g.Open(nil, nonce, frame, aad)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func (r *formatReader) frame(object []byte, info string, number uint32, last byte, frame []byte) []byte {
	aad := binary.LittleEndian.AppendUint32(slices.Clone(object[:104]), number)
	plain := opened(r.t, r.key(object[72:104], info), binary.BigEndian.AppendUint32(make([]byte, 8), number), frame, append(aad, last))
	switch plain[0] {
	case 1:
		d, err := zstd.NewReader(nil)
		if err != nil {
			r.t.Fatal(err)
		}
		defer d.Close()
		out, err := d.DecodeAll(plain[1:], nil)
		if err != nil {
			r.t.Fatal(err)
		}
		return out
	case 0, 2:
		return plain[1:]
	}
	r.t.Fatalf("kind %d", plain[0])
	return nil
}

type formatHead struct {
	Format  string
	Version int
	MAC     string
	Body    json.RawMessage
}

type formatBody struct {
	Lineage string
	Key     struct {
		ID      string
		Wrapped []byte
	}
	Generations []struct {
		Manifest, SHA256, Digest string
		Sequence                 uint64
	}
}

type formatManifest struct {
	Packs []struct {
		Name, SHA256 string
		Size         int64
		Pages        int
		Frames       []int
	}
	Files []struct {
		Name, Root string
		Size       int64
	}
}

func TestFormatIsDocumented(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	pages := memory(300, 2)
	clear(pages[64*pageSize : 70*pageSize])
	a.commit(t, w.image(1, 1, checkpoint(pages)))
	want := checkpoint(slices.Concat(memory(1, 40), pages))
	im := w.image(1, 2, want)
	a.commit(t, im)

	r := &formatReader{t: t, objects: w.bucket.Body, name: testName}
	var head formatHead
	var body formatBody
	if err := json.Unmarshal(r.objects("heads/"+r.name), &head); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(head.Body, &body); err != nil {
		t.Fatal(err)
	}
	// The key: of a file with 32 times 1.
	file := bytes.Repeat([]byte{1}, 32)
	id, _ := hkdf.Key(sha256.New, file, nil, "hibernate/1 id", 8)
	if body.Key.ID != "file:"+hex.EncodeToString(id) {
		t.Errorf("key %s", body.Key.ID)
	}
	wrap, _ := hkdf.Key(sha256.New, file, body.Key.Wrapped[:32], "hibernate/1 wrap", 32)
	payload := opened(t, wrap, make([]byte, 12), body.Key.Wrapped[32:], nil)
	if hex.EncodeToString(payload[32:]) != body.Lineage {
		t.Errorf("lineage %s", body.Lineage)
	}
	r.data = payload[:32]
	mac := hmac.New(sha256.New, r.key(nil, "hibernate/1 head"))
	mac.Write([]byte("hibernate.durable-head\x001\x00" + r.name + "\x00" + string(head.Body)))
	if hex.EncodeToString(mac.Sum(nil)) != head.MAC {
		t.Error("MAC of the head")
	}
	g := body.Generations[0]
	digest := hmac.New(sha256.New, r.key(nil, "hibernate/1 digest"))
	digest.Write(im.Document)
	if hex.EncodeToString(digest.Sum(nil)[:16]) != g.Digest || g.Sequence != 2 {
		t.Errorf("generation %+v", g)
	}

	object := r.objects("data/" + r.name + "/" + g.Manifest)
	if sum := sha256.Sum256(object); hex.EncodeToString(sum[:]) != g.SHA256 {
		t.Error("SHA-256 of the manifest")
	}
	r.header(object, 2, g.Manifest, payload[32:])
	plain := r.frame(object, "hibernate/1 manifest", 0, 1, object[104:])
	var m formatManifest
	var extents, document []byte
	for want := byte(1); len(plain) > 0; want++ {
		n, k := binary.Uvarint(plain[1:])
		content := plain[1+k:][:n]
		switch {
		case plain[0] != want:
			t.Fatalf("section %d", plain[0])
		case want == 1:
			if err := json.Unmarshal(content, &m); err != nil {
				t.Fatal(err)
			}
		case want == 2:
			document = content
		case want == 3:
			extents = content
		}
		plain = plain[1+k+int(n):]
	}
	if !bytes.Equal(document, im.Document) {
		t.Error("manifest.json is another")
	}

	var slots [][]byte // of all packs, page by page
	var hashes [][]byte
	var first []int
	for _, p := range m.Packs {
		object := r.objects("data/" + r.name + "/" + p.Name)
		if sum := sha256.Sum256(object); hex.EncodeToString(sum[:]) != p.SHA256 || int64(len(object)) != p.Size {
			t.Error("SHA-256 of a pack")
		}
		r.header(object, 1, p.Name, payload[32:])
		first = append(first, len(slots))
		at := 104
		for i, length := range p.Frames {
			slots = slices.AppendSeq(slots, slices.Chunk(r.frame(object, "hibernate/1 pack", uint32(i), 0, object[at:at+length]), 4096))
			at += length
		}
		hashes = slices.AppendSeq(hashes, slices.Chunk(r.frame(object, "hibernate/1 pack", uint32(len(p.Frames)), 1, object[at:]), 16))
		if len(slots) != first[len(first)-1]+p.Pages || len(hashes) != len(slots) {
			t.Fatalf("%d pages, %d hashes", len(slots), len(hashes))
		}
	}
	hash := func(page []byte) []byte {
		sum := sha256.Sum256(append(r.key(nil, "hibernate/1 page"), page...))
		return sum[:16]
	}
	for i, page := range slots {
		if !bytes.Equal(hash(page), hashes[i]) {
			t.Fatalf("hash of page %d", i)
		}
	}
	number := func() uint64 {
		n, k := binary.Uvarint(extents)
		extents = extents[k:]
		return n
	}
	for _, f := range m.Files {
		var out []byte
		root := sha256.New()
		root.Write(binary.LittleEndian.AppendUint64(nil, uint64(f.Size)))
		end := int64(0)
		for range number() {
			count, pack := number(), number()
			if pack > 0 {
				step, k := binary.Varint(extents)
				extents = extents[k:]
				end += step
			}
			for range count {
				page := make([]byte, 4096)
				if pack > 0 {
					page = slots[int64(first[pack-1])+end]
					end++
				}
				out = append(out, page...)
				root.Write(hash(page))
			}
		}
		if !bytes.Equal(out[:f.Size], want[f.Name]) {
			t.Errorf("%s is another", f.Name)
		}
		if hex.EncodeToString(root.Sum(nil)) != f.Root {
			t.Errorf("root of %s", f.Name)
		}
	}
	if len(extents) != 0 || len(m.Files) != len(want) {
		t.Errorf("%d bytes left, %d files", len(extents), len(m.Files))
	}
}

func (r *formatReader) header(object []byte, kind byte, name string, lineage []byte) {
	r.t.Helper()
	h := object[:104]
	u64 := func(at int) string { return leftPad(binary.LittleEndian.Uint64(h[at:])) }
	number := binary.BigEndian.AppendUint32(nil, binary.LittleEndian.Uint32(h[64:]))
	is := string("?pm"[kind]) + "/" + u64(48) + "-" + u64(56) + "-" + hex.EncodeToString(h[32:48]) + "-" + hex.EncodeToString(number)
	if is != name || string(h[:8]) != "HIBERN8\x00" || binary.LittleEndian.Uint16(h[8:]) != 1 || h[10] != kind || h[11] != 0 ||
		binary.LittleEndian.Uint32(h[12:]) != 104 || !bytes.Equal(h[16:32], lineage) || binary.LittleEndian.Uint32(h[68:]) != 0 {
		r.t.Errorf("header %x of %s, which should be of %s", h, is, name)
	}
}

func leftPad(v uint64) string {
	s := ""
	for ; v > 0; v /= 10 {
		s = string(rune('0'+v%10)) + s
	}
	return strings.Repeat("0", 20-len(s)) + s
}

// What this release writes is read by the next: an old head is one with fewer fields.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	h, _, err := a.read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	body = append(body[:len(body)-1], `,"of a later release":[1,2]}`...)
	doc := headDocument{Format: headFormat, Version: 1, Body: body, MAC: hex.EncodeToString(headMAC(testName, 1, body, a.keys))}
	data, err := line(doc)
	if err != nil {
		t.Fatal(err)
	}
	w.bucket.Alter(headObject, func([]byte) []byte { return data })
	if _, err := a.Head(t.Context()); err != nil {
		t.Error(err)
	}
}

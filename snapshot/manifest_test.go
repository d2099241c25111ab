package snapshot

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func fullManifest() Manifest {
	return Manifest{
		Version: ManifestVersion, Sequence: 4, Parent: 3, Created: time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC),
		Files:     []File{{Name: "a.img", Size: ChunkSize + 1, CRC32C: []uint32{1, 4294967295}, SHA256: "00"}, {Name: "b.img", CRC32C: []uint32{}}},
		Namespace: "default", ID: "c1", Identity: "db", Epoch: 9, Lineage: "l",
		Runtime: Runtime{
			Version: "runsc test", SHA256: "ab", Sidecars: map[string]string{"gofer": "cd"}, Flags: []string{"--network=sandbox"},
			Platform: "systrap", CPUFeatures: []string{"avx"}, CacheLine: 64, PageSize: 4096,
		},
		Host: Host{
			Node: "n1", BootID: "b", Kernel: "6.18", Architecture: "amd64", CPUModel: "x", THP: "advise", MTU: 1500,
			Facts: map[string]string{"image": "x"},
		},
		SpecDigest: "sha256:1",
		Containers: []Container{{
			ID: "c1", Name: "main", Spec: json.RawMessage(`{"ociVersion":"1.1.0 <&>"}`), SpecDigest: "sha256:2",
			Image: "i", ImageDigest: "sha256:3", RootfsKey: "k", Volumes: []Volume{{Destination: "/data", Source: "/srv", ReadOnly: true, Print: Print{FileSystem: "ef53/0000000200000003", Entries: 4, More: true, Newest: time.Unix(5, 6).UTC(), Digest: "d"}}},
		}},
		Attachment: json.RawMessage(`{"mac":"02:00"}`), Ports: []uint16{80, 65535}, Only4: []uint16{80},
		Template: true, Origin: &Origin{Namespace: "n", ID: "i", Identity: "p/w", Lineage: "l", Sequence: 2, Created: time.Unix(7, 8).UTC()},
		Touched: Touched{{Page: 7, Count: 2}},
		Notes:   map[string]json.RawMessage{"signals": json.RawMessage(`[15]`)},
		Durable: &Durable{
			Packs:   []Pack{{Name: "p", Size: 1, SHA256: "x", Frames: []int{1}}},
			Extents: []Extent{{File: "a.img", Page: 1, Count: 1, Pack: 1, Frame: 1, Slot: 1}},
			Roots:   map[string]string{"a.img": "x"}, Bytes: 1,
		},
	}
}

func TestManifestRoundTrip(t *testing.T) {
	m := fullManifest()
	noZeroFields(t, reflect.ValueOf(m), "Manifest")
	first, err := encodeDocument(manifestFormat, ManifestVersion, m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseManifest(first)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("%+v, %v", got, err)
	}
	second, err := encodeDocument(manifestFormat, ManifestVersion, got)
	if err != nil || string(first) != string(second) {
		t.Fatalf("not deterministic: %v", err)
	}
}

// noZeroFields keeps fullManifest full when a field is added.
func noZeroFields(t *testing.T, v reflect.Value, path string) {
	for i := range v.NumField() {
		f, name := v.Field(i), path+"."+v.Type().Field(i).Name
		if f.IsZero() {
			t.Errorf("%s is not covered", name)
		}
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if f.Kind() == reflect.Slice && f.Len() > 0 {
			f = f.Index(0)
		}
		if f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[time.Time]() {
			noZeroFields(t, f, name)
		}
	}
}

func TestManifestIgnoresFieldsOfTheFuture(t *testing.T) {
	raw, err := json.Marshal(fullManifest())
	if err != nil {
		t.Fatal(err)
	}
	body := json.RawMessage(strings.Replace(string(raw), `{"sequence"`, `{"colour":"blue","sequence"`, 1))
	data, err := encodeDocument(manifestFormat, ManifestVersion, body)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseManifest(data); err != nil || got.Sequence != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestManifestThatMakesNoSense(t *testing.T) {
	for name, change := range map[string]func(*Manifest){
		"no sequence":       func(m *Manifest) { m.Sequence = 0 },
		"no files":          func(m *Manifest) { m.Files = nil },
		"checksum missing":  func(m *Manifest) { m.Files[0].CRC32C = m.Files[0].CRC32C[:1] },
		"checksum too many": func(m *Manifest) { m.Files[1].CRC32C = []uint32{1} },
		"negative size":     func(m *Manifest) { m.Files[1].Size = -1 },
		"huge size":         func(m *Manifest) { m.Files[1].Size = 1 << 62 },
		"out of the way":    func(m *Manifest) { m.Files[0].Name = "../a" },
		"absolute":          func(m *Manifest) { m.Files[0].Name = "/a" },
		"dots":              func(m *Manifest) { m.Files[0].Name = ".." },
		"twice":             func(m *Manifest) { m.Files[1].Name = "a.img" },
		"not ordered":       func(m *Manifest) { m.Files[0].Name = "z.img" },
	} {
		m := fullManifest()
		change(&m)
		data, err := encodeDocument(manifestFormat, ManifestVersion, m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseManifest(data); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestOfAnotherSequence(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	take(t, l, pages(2, 1))
	m := fullManifest()
	data, err := encodeDocument(manifestFormat, ManifestVersion, m)
	if err != nil {
		t.Fatal(err)
	}
	put(t, l.sequencePath(1), manifestFile, data)
	if _, err := l.Current(); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

package snapshot

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func FuzzManifest(f *testing.F) {
	good, err := encodeDocument(manifestFormat, ManifestVersion, fullManifest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	for _, hint := range []string{`[{"page":18446744073709551615,"count":18446744073709551615}]`, `[{"page":0,"count":0}]`, `"x"`, `[-1]`} {
		body := `{"sequence":1,"files":[{"name":"pages.img","size":5000,"crc32c":[7]}],"touched":` + hint + `}`
		data, err := encodeDocument(manifestFormat, ManifestVersion, json.RawMessage(body))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"format":"hibernate.manifest","version":1,"crc32c":"00000000"}`))
	f.Add([]byte(`{"format":"hibernate.manifest","version":1,"crc32c":"00000000","body":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data)
		typed(t, err)
		checkHint(t, m)
		if err == nil && (m.Sequence == 0 || len(m.Files) == 0) {
			t.Fatalf("accepted %+v", m)
		}
	})
}

func FuzzHead(f *testing.F) {
	good, err := encodeDocument(headFormat, HeadVersion, Head{State: Asleep, Sequence: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[1:])
	f.Add([]byte("null"))
	f.Add([]byte(`{"format":"hibernate.head","version":99999999999}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parseHead(data)
		typed(t, err)
		if err == nil && (!h.State.valid() || h.State == Asleep && h.Sequence == 0) {
			t.Fatalf("accepted %+v", h)
		}
	})
}

func typed(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Fatalf("untyped error %v", err)
	}
}

func FuzzPagesMeta(f *testing.F) {
	f.Add(slices.Concat(memoryFileBytes(8*pageSize, pageSize), graphBytes(), memoryFileBytes(2*pageSize, 0)))
	f.Add(memoryFileBytes(1<<40, 0))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := committedBytes(data)
		typed(t, err)
		if err == nil && n%pageSize != 0 {
			t.Fatalf("%d bytes are no pages", n)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add(stateBytes(graphBytes()))
	f.Add(stateBytes([]byte{tagArrayByte, 0x80}))
	// Nested arrays, and an array of very many nothings.
	f.Add(stateBytes(append([]byte{129, 128, 128, 128, 128, 128, 128, 128, 128, 1, byte(tagUint), 1}, slices.Repeat([]byte{tagArrayByte, 1}, 500)...)))
	f.Add(stateBytes([]byte{129, 128, 128, 128, 128, 128, 128, 128, 128, 1, byte(tagUint), 1, tagArrayByte, 255, 255, 255, 255, 255, 255, 127, byte(tagNil)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		typed(t, checkStateFile(data))
	})
}

const tagArrayByte = byte(tagArray)

package snapshot

import (
	"encoding/binary"
	"fmt"
	"io"
)

// graphLength returns the length of the object graph at the start of data, in
// the encoding of gVisor's pkg/state/wire. The encoding describes itself, so
// it can be walked without knowing the objects: a count, type definitions,
// and then that many pairs of id and object. Data that ends early is
// io.ErrUnexpectedEOF. It never panics.
func graphLength(data []byte) (int, error) {
	w := walker{data: data}
	count := w.uint()
	if count&objectFlag == 0 {
		w.skip(count) // raw bytes, not a graph
		return w.pos, w.err
	}
	for left := count &^ objectFlag; left > 0 && w.err == nil; {
		switch tag := w.uint(); {
		case w.err != nil:
		case tag == tagType:
			w.body(tag, 0)
		case tag == tagUint: // the id
			w.uint()
			w.object(0)
			left--
		default:
			w.fail("tag %d where an id or a type was expected", tag)
		}
	}
	return w.pos, w.err
}

// objectFlag tells a count of objects from a length in bytes.
const objectFlag = 1 << 63

// Tags of objects, in the order of pkg/state/wire.
const (
	tagBool uint64 = iota
	tagInt
	tagUint
	tagFloat32
	tagFloat64
	tagNil
	tagRef
	tagString
	tagSlice
	tagArray
	tagMap
	tagStruct
	tagNoObjects
	tagMultipleObjects
	tagInterface
	tagComplex64
	tagComplex128
	tagType
)

// maxDepth bounds recursion; real graphs stay below ten.
const maxDepth = 100

// walker moves over the encoding. The first error stays, and stops it.
type walker struct {
	data []byte
	pos  int
	err  error
}

func (w *walker) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("offset %d: "+format, append([]any{w.pos}, args...)...)
	}
}

func (w *walker) uint() uint64 {
	if w.err != nil {
		return 0
	}
	if w.pos < len(w.data) && w.data[w.pos] < 0x80 { // most are small
		w.pos++
		return uint64(w.data[w.pos-1])
	}
	v, n := binary.Uvarint(w.data[w.pos:])
	if n == 0 {
		w.err = io.ErrUnexpectedEOF
	} else if n < 0 {
		w.fail("number of more than 64 bits")
	}
	if w.err != nil {
		return 0
	}
	w.pos += n
	return v
}

func (w *walker) skip(n uint64) {
	if w.err != nil {
		return
	}
	if n > uint64(len(w.data)-w.pos) {
		w.err = io.ErrUnexpectedEOF
		return
	}
	w.pos += int(n)
}

// object walks a tag and what belongs to it, and returns the tag.
func (w *walker) object(depth int) uint64 {
	tag := w.uint()
	w.body(tag, depth)
	return tag
}

func (w *walker) body(tag uint64, depth int) {
	if w.err != nil {
		return
	}
	if depth > maxDepth {
		w.fail("nested more than %d deep", maxDepth)
		return
	}
	switch tag {
	case tagBool, tagInt, tagUint, tagFloat32, tagFloat64:
		w.uint()
	case tagNil, tagNoObjects:
	case tagComplex64, tagComplex128:
		w.uint()
		w.uint()
	case tagString:
		w.skip(w.uint())
	case tagRef:
		w.ref(depth)
	case tagSlice:
		w.uint()
		w.uint()
		w.ref(depth)
	case tagStruct:
		w.uint()
		w.object(depth + 1)
	case tagInterface:
		w.typeSpec(depth)
		w.object(depth + 1)
	default:
		w.collection(tag, depth)
	}
}

func (w *walker) collection(tag uint64, depth int) {
	switch tag {
	case tagArray:
		w.alike(depth, 1)
	case tagMap:
		w.alike(depth, 2)
	case tagMultipleObjects:
		for n := w.uint(); n > 0 && w.err == nil; n-- {
			w.object(depth + 1)
		}
	case tagType:
		w.skip(w.uint())
		for n := w.uint(); n > 0 && w.err == nil; n-- {
			w.skip(w.uint())
		}
	default:
		w.fail("unknown tag %d", tag)
	}
}

// alike walks rows of width objects: only those of the first row have tags,
// and the others have the same.
func (w *walker) alike(depth, width int) {
	rows := w.uint()
	if rows == 0 || w.err != nil {
		return
	}
	var tags [2]uint64
	empty := true
	for i := range width {
		tags[i] = w.object(depth + 1)
		empty = empty && (tags[i] == tagNil || tags[i] == tagNoObjects)
	}
	for ; rows > 1 && !empty && w.err == nil; rows-- {
		for i := range width {
			w.body(tags[i], depth+1)
		}
	}
}

func (w *walker) ref(depth int) {
	w.uint()
	dots := w.uint()
	for n := dots; n > 0 && w.err == nil; n-- {
		// Zigzag: an index if not negative, else the length of a name.
		if d := w.uint(); d&1 != 0 {
			w.skip(d>>1 + 1)
		}
	}
	if dots != 0 {
		w.typeSpec(depth)
	}
}

func (w *walker) typeSpec(depth int) {
	if depth > maxDepth {
		w.fail("type nested more than %d deep", maxDepth)
	}
	if w.err != nil {
		return
	}
	switch kind := w.uint(); kind {
	case 0: // id of a type
		w.uint()
	case 1, 3: // pointer, slice
		w.typeSpec(depth + 1)
	case 2: // array
		w.uint()
		w.typeSpec(depth + 1)
	case 4: // map
		w.typeSpec(depth + 1)
		w.typeSpec(depth + 1)
	case 5: // nil
	default:
		w.fail("unknown type %d", kind)
	}
}

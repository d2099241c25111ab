package snapshot

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// committedBytes returns how long pages.img has to be: the sum of the
// committed ranges of all memory files that pages_meta.img describes, to its
// very end. Its layout is that of saveMemoryFiles and savePrivateMFs in
// gVisor's pkg/sentry/kernel: the main memory file, an object graph with the
// names of the private ones, and the private ones. A memory file is an 8-byte
// little-endian length and that many bytes of protobuf.
func committedBytes(meta []byte) (uint64, error) {
	total, n, err := memoryFile(meta, nil)
	if err != nil {
		return 0, err
	}
	rest := meta[n:]
	if n, err = graphLength(rest); err != nil {
		return 0, graphError(pagesMetaFile, err)
	}
	for rest = rest[n:]; len(rest) > 0; rest = rest[n:] {
		var size uint64
		if size, n, err = memoryFile(rest, nil); err != nil {
			return 0, err
		}
		if total += size; total < size {
			return 0, corrupt(pagesMetaFile, "more than 2^64 bytes committed")
		}
	}
	return total, nil
}

// memoryFile returns the committed bytes of the memory file at the start of
// data and the length of its description. committed ranges go to each, in
// order, if that is not nil.
func memoryFile(data []byte, each func(acctRange)) (committed uint64, length int, err error) {
	if len(data) < 8 {
		return 0, 0, truncated(pagesMetaFile, "%d bytes where a memory file was expected", len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	if n > uint64(len(data)-8) {
		return 0, 0, truncated(pagesMetaFile, "memory file of %d bytes in %d", n, len(data)-8)
	}
	length = 8 + int(n)
	if committed, err = committedRanges(data[8:length], each); err != nil {
		return 0, 0, corrupt(pagesMetaFile, "%v", err)
	}
	return committed, length, nil
}

// Fields of MemoryFileMetadataProto and MemAcctRangeProto, gVisor's
// pkg/sentry/pgalloc.
const (
	fieldVersion  = 1
	fieldMemAcct  = 3
	fieldStart    = 1
	fieldEnd      = 2
	fieldKnown    = 5
	protoVersion1 = 1
)

func committedRanges(msg []byte, each func(acctRange)) (uint64, error) {
	var total, version, last uint64
	err := eachField(msg, func(num protowire.Number, value uint64, sub []byte) error {
		switch num {
		case fieldVersion:
			version = value
		case fieldMemAcct:
			r, err := parseRange(sub)
			if err != nil {
				return err
			}
			if r.start < last {
				return fmt.Errorf("range at %#x overlaps the one before", r.start)
			}
			last = r.end
			if r.known && each != nil {
				each(r)
			}
			if r.known {
				total += r.end - r.start // Disjoint: can't overflow.
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if version != protoVersion1 {
		return 0, fmt.Errorf("memory file version %d, want %d", version, protoVersion1)
	}
	return total, nil
}

type acctRange struct {
	start, end uint64
	known      bool
}

func parseRange(msg []byte) (acctRange, error) {
	var r acctRange
	err := eachField(msg, func(num protowire.Number, value uint64, _ []byte) error {
		switch num {
		case fieldStart:
			r.start = value
		case fieldEnd:
			r.end = value
		case fieldKnown:
			r.known = value != 0
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	if r.start >= r.end || r.start%pageSize != 0 || r.end%pageSize != 0 {
		return r, fmt.Errorf("range [%#x, %#x)", r.start, r.end)
	}
	return r, nil
}

// eachField calls fn for each field of a protobuf message, with its number
// or, for a nested one, its bytes. Fields of other kinds are skipped.
func eachField(msg []byte, fn func(num protowire.Number, value uint64, sub []byte) error) error {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return protowire.ParseError(n)
		}
		msg = msg[n:]
		var value uint64
		var sub []byte
		switch typ {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			sub, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(num, typ, msg)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := fn(num, value, sub); err != nil {
			return err
		}
		msg = msg[n:]
	}
	return nil
}

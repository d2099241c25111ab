package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The files of an uncompressed runsc checkpoint, pkg/sentry/state/checkpointfiles
// of gVisor.
const (
	stateFile     = "checkpoint.img"
	pagesMetaFile = "pages_meta.img"
	pagesFile     = "pages.img"
)

const pageSize = 4096

// checkImage compares what runsc wrote with itself and returns the bytes of
// pages, and where those of the main memory file are. A full disk is the usual
// reason for it not to fit.
func checkImage(dir string) (uint64, layout, error) {
	state, err := readPart(dir, stateFile)
	if err != nil {
		return 0, nil, err
	}
	if err := checkStateFile(state); err != nil {
		return 0, nil, err
	}
	meta, err := readPart(dir, pagesMetaFile)
	if err != nil {
		return 0, nil, err
	}
	want, err := committedBytes(meta)
	if err != nil {
		return 0, nil, err
	}
	if err := checkPagesFile(dir, want); err != nil {
		return 0, nil, err
	}
	l, err := layoutOf(meta)
	return want, l, err
}

func checkPagesFile(dir string, want uint64) error {
	st, err := os.Stat(filepath.Join(dir, pagesFile))
	if errors.Is(err, os.ErrNotExist) {
		return truncated(pagesFile, "not there")
	}
	if err != nil {
		return err
	}
	switch size := uint64(st.Size()); {
	case size < want:
		return truncated(pagesFile, "%d bytes, %s says %d", size, pagesMetaFile, want)
	case size > want:
		return corrupt(pagesFile, "%d bytes, %s says %d", size, pagesMetaFile, want)
	}
	return nil
}

// maxPart bounds what is read into memory of the files that describe pages.
const maxPart = 1 << 30

func readPart(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, truncated(name, "not there")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxPart {
		return nil, corrupt(name, "%d bytes, more than %d", st.Size(), int64(maxPart))
	}
	data := make([]byte, st.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// stateMagic is how a state file starts, pkg/state/statefile of gVisor.
var stateMagic = []byte("gVisorSF")

// checkStateFile walks checkpoint.img: magic, big-endian length, that many
// bytes of JSON, and then graphs of objects up to the very end.
func checkStateFile(data []byte) error {
	head := len(stateMagic) + 8
	if len(data) < head {
		return truncated(stateFile, "%d bytes", len(data))
	}
	if !bytes.HasPrefix(data, stateMagic) {
		return corrupt(stateFile, "does not start with %q", stateMagic)
	}
	n := binary.BigEndian.Uint64(data[len(stateMagic):])
	if n > uint64(len(data)-head) {
		return truncated(stateFile, "metadata of %d bytes in %d", n, len(data))
	}
	var meta map[string]string
	if err := json.Unmarshal(data[head:head+int(n)], &meta); err != nil {
		return corrupt(stateFile, "metadata: %v", err)
	}
	if c := meta["compression"]; c != "" && c != "none" {
		return corrupt(stateFile, "compression is %q, want none", c)
	}
	return walkGraphs(data[head+int(n):], stateFile)
}

// walkGraphs needs at least one graph and nothing after the last.
func walkGraphs(rest []byte, name string) error {
	if len(rest) == 0 {
		return truncated(name, "no state after the metadata")
	}
	for len(rest) > 0 {
		n, err := graphLength(rest)
		if err != nil {
			return graphError(name, err)
		}
		rest = rest[n:]
	}
	return nil
}

func graphError(name string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return truncated(name, "ends within an object")
	}
	return corrupt(name, "%v", err)
}

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

// files are kept open after their names are gone.
type files struct {
	mu   sync.Mutex
	open map[string]*openFile
}

type openFile struct {
	f    *os.File
	size int64
}

// place is what a file operation answers.
type place struct {
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // of what was read or written by the operation
}

// create writes in one name, and unlinks it at once. An earlier file of the name is closed.
func (s *files) create(r *http.Request) (any, error) {
	mib, err := number(r, "mib")
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp("", "open-")
	if err != nil {
		return nil, err
	}
	sum, err := fill(f, mib)
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.URL.Query().Get("name")
	if old := s.open[name]; old != nil {
		old.f.Close()
	}
	s.open[name] = &openFile{f: f, size: int64(mib) * mebibyte}
	return place{0, int64(mib) * mebibyte, sum}, nil
}

// read goes on from where the descriptor stands.
func (s *files) read(r *http.Request) (any, error) {
	n, err := number(r, "n")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.named(r)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.CopyN(h, o.f, int64(n)); err != nil && err != io.EOF {
		return nil, err
	}
	offset, err := o.f.Seek(0, io.SeekCurrent)
	return place{offset, o.size, hexSum(h)}, err
}

func (s *files) sum(r *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.named(r)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(o.f, 0, o.size)); err != nil {
		return nil, err
	}
	offset, err := o.f.Seek(0, io.SeekCurrent)
	return place{offset, o.size, hexSum(h)}, err
}

// named wants the lock held.
func (s *files) named(r *http.Request) (*openFile, error) {
	name := r.URL.Query().Get("name")
	if o := s.open[name]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("no open file %q", name)
}

// fill writes mib MiB of random bytes and returns their checksum.
func fill(w io.Writer, mib int) (string, error) {
	h := sha256.New()
	for range mib {
		b := randomBytes(mebibyte)
		h.Write(b)
		if _, err := w.Write(b); err != nil {
			return "", err
		}
	}
	return hexSum(h), nil
}

// write makes or replaces the file at a path.
func write(r *http.Request) (any, error) {
	mib, err := number(r, "mib")
	if err != nil {
		return nil, err
	}
	f, err := os.Create(r.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum, err := fill(f, mib)
	if err != nil {
		return nil, err
	}
	return total{int64(mib) * mebibyte, sum}, f.Sync()
}

func sumPath(r *http.Request) (any, error) {
	f, err := os.Open(r.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return total{n, hexSum(h)}, err
}

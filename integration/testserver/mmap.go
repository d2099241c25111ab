package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"sync"
	"syscall"
)

// mappings are shared mappings of files that stay in /tmp.
type mappings struct {
	mu   sync.Mutex
	open map[string][]byte
}

// create maps a new file and fills it through the mapping. An earlier mapping of the name is dropped.
func (s *mappings) create(r *http.Request) (any, error) {
	mib, err := number(r, "mib")
	if err != nil {
		return nil, err
	}
	memory, err := mapFile(mib * mebibyte)
	if err != nil {
		return nil, err
	}
	copy(memory, randomBytes(len(memory)))
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.URL.Query().Get("name")
	if old := s.open[name]; old != nil {
		syscall.Munmap(old)
	}
	s.open[name] = memory
	return sumOf(memory), nil
}

func (s *mappings) sum(r *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.URL.Query().Get("name")
	memory := s.open[name]
	if memory == nil {
		return nil, fmt.Errorf("no mapping %q", name)
	}
	return sumOf(memory), nil
}

func mapFile(size int) ([]byte, error) {
	f, err := os.CreateTemp("", "mmap-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

func sumOf(b []byte) total {
	return total{int64(len(b)), fmt.Sprintf("%x", sha256.Sum256(b))}
}

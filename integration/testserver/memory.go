package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
)

type counter struct{ n atomic.Int64 }

func (c *counter) handle(r *http.Request) (any, error) {
	if r.Method == http.MethodPost {
		return c.n.Add(1), nil
	}
	return c.n.Load(), nil
}

// memory is heap of a wanted size, in blocks of 1 MiB of random bytes.
type memory struct {
	mu     sync.Mutex
	blocks [][]byte
}

const mebibyte = 1 << 20

// grow makes it mib blocks, newly filled where it grows.
func (m *memory) grow(mib int) error {
	if mib < 0 || mib > 1<<20 {
		return fmt.Errorf("%d MiB of memory: want 0 to 1048576", mib)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mib < len(m.blocks) {
		m.blocks = append([][]byte(nil), m.blocks[:mib]...)
	}
	for len(m.blocks) < mib {
		m.blocks = append(m.blocks, randomBytes(mebibyte))
	}
	return nil
}

func (m *memory) handle(r *http.Request) (any, error) {
	if r.Method == http.MethodPost {
		mib, err := number(r, "mib")
		if err != nil {
			return nil, err
		}
		if err := m.grow(mib); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.blocks), nil
}

func (m *memory) sum() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := sha256.New()
	for _, b := range m.blocks {
		h.Write(b)
	}
	return hexSum(h)
}

// randomBytes are different at each call and can't be compressed.
func randomBytes(n int) []byte {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	b := make([]byte, n)
	rand.NewChaCha8(seed).Read(b)
	return b
}

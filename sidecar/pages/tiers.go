package pages

import (
	"slices"
	"sync"
)

// Tiers is a source with another one of the same files behind it: a chunk that the first can't give, or gives wrongly, is read from
// the second, while whoever wants it waits.
type Tiers struct {
	First, Second Source
	SecondOnly    []string // files that only the second has
	// Mended is told of each such chunk, -1 for a file that the first could not open. It may be called from many goroutines.
	Mended func(file string, chunk int, why error)
}

// Open opens a file where it is.
func (t Tiers) Open(name string) (Blob, error) {
	if slices.Contains(t.SecondOnly, name) {
		return t.Second.Open(name)
	}
	first, err := t.First.Open(name)
	if err == nil {
		return &tiered{Blob: first, tiers: t, name: name}, nil
	}
	second, e := t.Second.Open(name)
	if e != nil {
		return nil, err
	}
	t.Mended(name, -1, err)
	return second, nil
}

// tiered is a blob that another one stands behind.
type tiered struct {
	Blob
	tiers Tiers
	name  string

	mu     sync.Mutex // guards second
	second Blob       // nil until it is needed
}

// Other is another place for the same bytes.
func (t *tiered) Other() (Blob, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if t.second == nil {
		t.second, err = t.tiers.Second.Open(t.name)
	}
	return t.second, err
}

// Mended says that a chunk was read from there.
func (t *tiered) Mended(chunk int, why error) { t.tiers.Mended(t.name, chunk, why) }

// Expect implements Expecter, where the first place does.
func (t *tiered) Expect(chunks []int) {
	if e, ok := t.Blob.(Expecter); ok {
		e.Expect(chunks)
	}
}

// Close implements Blob.
func (t *tiered) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.second != nil {
		_ = t.second.Close()
	}
	return t.Blob.Close()
}

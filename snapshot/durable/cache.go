package durable

import "sync"

// frameCache keeps the pages of a number of frames. What is in use is kept whatever the number.
type frameCache struct {
	limit int

	mu      sync.Mutex // guards the fields below, and the entries' users and used
	entries map[frameID]*frameEntry
	clock   uint64
}

// frameEntry is a frame that is being read, or has been. pages and err are set when ready is closed.
type frameEntry struct {
	id    frameID
	ready chan struct{}
	pages []byte
	err   error
	users int
	used  uint64
}

func newFrameCache(limit int) *frameCache {
	return &frameCache{limit: limit, entries: make(map[frameID]*frameEntry)}
}

// take gives the entry of a frame, to be released. mine: the caller is to fill it.
func (c *frameCache) take(id frameID) (e *frameEntry, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e = c.entries[id]; e != nil {
		e.users++
		return e, false
	}
	c.evict()
	e = &frameEntry{id: id, ready: make(chan struct{}), users: 1}
	c.entries[id] = e
	return e, true
}

// has is true for a frame that is there, or on its way.
func (c *frameCache) has(id frameID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[id] != nil
}

// evict makes room for one entry: the one that was used longest ago goes.
func (c *frameCache) evict() {
	for len(c.entries) >= c.limit {
		var oldest *frameEntry
		for _, e := range c.entries {
			if e.users == 0 && (oldest == nil || e.used < oldest.used) {
				oldest = e
			}
		}
		if oldest == nil {
			return
		}
		delete(c.entries, oldest.id)
	}
}

// release ends the use of entries. One that failed is not kept: the next read tries again.
func (c *frameCache) release(entries []*frameEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		e.users--
		c.clock++
		e.used = c.clock
		if failed(e) && c.entries[e.id] == e {
			delete(c.entries, e.id)
		}
	}
}

func failed(e *frameEntry) bool {
	select {
	case <-e.ready:
		return e.err != nil
	default:
		return false
	}
}

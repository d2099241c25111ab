// Package memstore is a store in memory, for tests: its clock is set, and it fails as it is told to.
//
// A Bucket is what outlives: the objects and the clock. A Store is one node's way to it, with faults of its own.
//
//	bucket := memstore.NewBucket()
//	here, there := bucket.Store(), bucket.Store()
//	here.Script(memstore.Fault{Op: memstore.Put, Name: "x/head", Kind: memstore.LoseAnswer})
package memstore

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Honesty is how a bucket treats the condition of a Put.
type Honesty int

const (
	Honest  Honesty = iota
	Racy            // looks, and writes a moment later: two that come at once may both win
	Ignores         // writes always
)

// Bucket holds objects. The zero value isn't usable.
type Bucket struct {
	mu      sync.Mutex
	objects map[string]object
	now     func() time.Time
	honesty Honesty
}

type object struct {
	body     []byte
	version  store.Version
	modified time.Time
}

// NewBucket is empty, honest, and its clock is the machine's.
func NewBucket() *Bucket {
	return &Bucket{objects: map[string]object{}, now: time.Now}
}

// SetClock makes now the store's clock.
func (b *Bucket) SetClock(now func() time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = now
}

// SetHonesty makes the bucket treat conditions so from now on.
func (b *Bucket) SetHonesty(h Honesty) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.honesty = h
}

// Names are those of all objects, in order.
func (b *Bucket) Names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for name := range b.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Body is a copy of an object as it is, nil when there is none.
func (b *Bucket) Body(name string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.objects[name].body)
}

// Alter changes an object behind everybody's back: bits that rot, an object that is swapped or rolled back. A nil result
// removes it. When it was modified stays.
func (b *Bucket) Alter(name string, change func(body []byte) []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.objects[name]
	body := change(slices.Clone(o.body))
	if body == nil {
		delete(b.objects, name)
		return
	}
	if o.modified.IsZero() {
		o.modified = b.now().Truncate(time.Second)
	}
	b.objects[name] = object{body, versionOf(body), o.modified}
}

// Store is a new way to the bucket, without faults.
func (b *Bucket) Store() *Store { return &Store{bucket: b} }

// New is a store with a bucket of its own.
func New() *Store { return NewBucket().Store() }

// Store is one way to a bucket.
type Store struct {
	bucket *Bucket
	faults faults
}

var _ store.Store = (*Store)(nil)

// Bucket is what the store leads to.
func (s *Store) Bucket() *Bucket { return s.bucket }

// Close does nothing: the bucket stays.
func (s *Store) Close() error { return nil }

// versionOf is as an S3 server has it: equal bytes have equal versions.
func versionOf(body []byte) store.Version {
	sum := md5.Sum(body)
	return store.Version(hex.EncodeToString(sum[:]))
}

func (s *Store) Put(ctx context.Context, name string, body []byte, cond store.Condition) (store.Version, error) {
	if err := store.CheckPut(name, body, cond); err != nil {
		return "", err
	}
	fault, err := s.begin(ctx, Put, name)
	if err != nil {
		return "", err
	}
	version, err := s.bucket.put(name, body, cond)
	if lost := fault.after(ctx, Put, name); lost != nil {
		return "", lost
	}
	return version, err
}

func (b *Bucket) put(name string, body []byte, cond store.Condition) (store.Version, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.honesty != Ignores {
		if err := b.holds(name, cond); err != nil {
			return "", err
		}
	}
	if b.honesty == Racy && cond != store.Always {
		b.mu.Unlock()
		for range 100 {
			runtime.Gosched()
		}
		b.mu.Lock()
	}
	version := versionOf(body)
	b.objects[name] = object{slices.Clone(body), version, b.now().Truncate(time.Second)}
	return version, nil
}

// holds says why a condition doesn't. The caller holds mu.
func (b *Bucket) holds(name string, cond store.Condition) error {
	o, there := b.objects[name]
	switch {
	case cond.Absent && there:
		return fmt.Errorf("%s: %w", name, store.ErrExists)
	case cond.Version != "" && (!there || o.version != cond.Version):
		return fmt.Errorf("%s: %w", name, store.ErrChanged)
	}
	return nil
}

func (s *Store) Get(ctx context.Context, name string, limit int64) ([]byte, store.Info, error) {
	o, fault, err := s.read(ctx, Get, name)
	if err != nil {
		return nil, store.Info{}, err
	}
	if int64(len(o.body)) > limit {
		return nil, store.Info{}, fmt.Errorf("%s: %w: %d bytes, and at most %d are taken", name, store.ErrTooLarge, len(o.body), limit)
	}
	body := slices.Clone(o.body)
	if fault.Kind == Short {
		body = body[:len(body)/2]
	}
	return fault.flip(body), o.info(name), nil
}

func (s *Store) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if err := store.CheckRange(name, offset, length); err != nil {
		return nil, err
	}
	o, fault, err := s.read(ctx, GetRange, name)
	if err != nil {
		return nil, err
	}
	if fault.Kind == Short {
		o.body = o.body[:len(o.body)/2]
	}
	if offset+length > int64(len(o.body)) {
		return nil, fmt.Errorf("%s: %d bytes from %d of %d: %w", name, length, offset, len(o.body), io.ErrUnexpectedEOF)
	}
	return fault.flip(slices.Clone(o.body[offset : offset+length])), nil
}

func (s *Store) Stat(ctx context.Context, name string) (store.Info, error) {
	o, _, err := s.read(ctx, Stat, name)
	return o.info(name), err
}

// read finds an object for op.
func (s *Store) read(ctx context.Context, op Op, name string) (object, Fault, error) {
	if err := store.CheckName(name); err != nil {
		return object{}, Fault{}, err
	}
	fault, err := s.begin(ctx, op, name)
	if err != nil {
		return object{}, fault, err
	}
	s.bucket.mu.Lock()
	o, there := s.bucket.objects[name]
	s.bucket.mu.Unlock()
	if lost := fault.after(ctx, op, name); lost != nil {
		return object{}, fault, lost
	}
	if !there {
		return object{}, fault, fmt.Errorf("%s: %w", name, store.ErrNotFound)
	}
	return o, fault, nil
}

func (o object) info(name string) store.Info {
	return store.Info{Name: name, Size: int64(len(o.body)), Version: o.version, Modified: o.modified}
}

func (s *Store) List(ctx context.Context, prefix string) ([]store.Info, time.Time, error) {
	fault, err := s.begin(ctx, List, prefix)
	if err != nil {
		return nil, time.Time{}, err
	}
	s.bucket.mu.Lock()
	began := s.bucket.now().Truncate(time.Second)
	var found []store.Info
	for name, o := range s.bucket.objects {
		if strings.HasPrefix(name, prefix) {
			found = append(found, o.info(name))
		}
	}
	s.bucket.mu.Unlock()
	slices.SortFunc(found, func(a, b store.Info) int { return cmp.Compare(a.Name, b.Name) })
	if lost := fault.after(ctx, List, prefix); lost != nil {
		return nil, time.Time{}, lost
	}
	if fault.Kind == Short {
		found = found[:len(found)/2]
	}
	return found, began, nil
}

func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	fault, err := s.begin(ctx, Delete, name)
	if err != nil {
		return err
	}
	s.bucket.mu.Lock()
	delete(s.bucket.objects, name)
	s.bucket.mu.Unlock()
	return fault.after(ctx, Delete, name)
}

package store

import (
	"context"
	"time"
)

// Op is a method of a Store, as metrics name it.
type Op string

const (
	OpPut      Op = "put"
	OpGet      Op = "get"
	OpGetRange Op = "range"
	OpStat     Op = "stat"
	OpList     Op = "list"
	OpDelete   Op = "delete"
)

// Ops are all of them.
var Ops = []Op{OpPut, OpGet, OpGetRange, OpStat, OpList, OpDelete}

// Observed calls began as each operation begins, and the function that it returns as it ends: with the bytes of the objects
// that were written or read, and the error. Both may be called from many goroutines; they must not wait.
func Observed(s Store, began func(Op) (ended func(bytes int64, err error))) Store {
	return &observed{s, began}
}

type observed struct {
	Store
	began func(Op) func(int64, error)
}

func (o *observed) Put(ctx context.Context, name string, body []byte, cond Condition) (Version, error) {
	ended := o.began(OpPut)
	version, err := o.Store.Put(ctx, name, body, cond)
	if err != nil {
		ended(0, err)
		return version, err
	}
	ended(int64(len(body)), nil)
	return version, nil
}

func (o *observed) Get(ctx context.Context, name string, limit int64) ([]byte, Info, error) {
	ended := o.began(OpGet)
	body, info, err := o.Store.Get(ctx, name, limit)
	ended(int64(len(body)), err)
	return body, info, err
}

func (o *observed) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	ended := o.began(OpGetRange)
	body, err := o.Store.GetRange(ctx, name, offset, length)
	ended(int64(len(body)), err)
	return body, err
}

func (o *observed) Stat(ctx context.Context, name string) (Info, error) {
	ended := o.began(OpStat)
	info, err := o.Store.Stat(ctx, name)
	ended(0, err)
	return info, err
}

func (o *observed) List(ctx context.Context, prefix string) ([]Info, time.Time, error) {
	ended := o.began(OpList)
	found, began, err := o.Store.List(ctx, prefix)
	ended(0, err)
	return found, began, err
}

func (o *observed) Delete(ctx context.Context, name string) error {
	ended := o.began(OpDelete)
	err := o.Store.Delete(ctx, name)
	ended(0, err)
	return err
}

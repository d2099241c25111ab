package s3store_test

import (
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// What packs and ranges of the durable tier cost, side by side, on a server of the same machine: HIBERNATE_STORE=1 go test -bench .
func BenchmarkServer(b *testing.B) {
	for _, mode := range modes {
		server := storetest.Versitygw(b, mode.tls)
		c, err := s3store.Parse(server.URL(server.Bucket(b), "p"))
		if err != nil {
			b.Fatal(err)
		}
		s, err := s3store.Open(c)
		if err != nil {
			b.Fatal(err)
		}
		pack := make([]byte, 12<<20)
		rand.Read(pack)
		if _, err := s.Put(b.Context(), "pack", pack, store.Always); err != nil {
			b.Fatal(err)
		}
		var names atomic.Int64
		run := func(what string, size int64, at int, do func() error) {
			b.Run(fmt.Sprintf("%s/%s", mode.name, what), func(b *testing.B) {
				b.SetBytes(size)
				b.SetParallelism(at)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := do(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
		run("put12MiB", int64(len(pack)), 2, func() error {
			_, err := s.Put(b.Context(), fmt.Sprint("n/", names.Add(1)%32), pack, store.Always)
			return err
		})
		run("range4MiB", 4<<20, 4, func() error {
			_, err := s.GetRange(b.Context(), "pack", 4<<20, 4<<20)
			return err
		})
		run("put4KiB", 4<<10, 8, func() error {
			_, err := s.Put(b.Context(), fmt.Sprint("s/", names.Add(1)), pack[:4<<10], store.Condition{Absent: true})
			return err
		})
	}
}

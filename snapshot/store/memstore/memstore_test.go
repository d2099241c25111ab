package memstore_test

import (
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

func TestContract(t *testing.T) {
	buckets := map[*testing.T]*memstore.Bucket{}
	storetest.Run(t, storetest.Kind{Open: func(t *testing.T) store.Store {
		if buckets[t] == nil {
			buckets[t] = memstore.NewBucket()
		}
		return buckets[t].Store()
	}})
}

package filestore_test

import (
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/filestore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

func TestContract(t *testing.T) {
	roots := map[*testing.T]string{}
	storetest.Run(t, storetest.Kind{Open: func(t *testing.T) store.Store {
		if roots[t] == "" {
			roots[t] = t.TempDir()
		}
		return open(t, roots[t])
	}})
}

func open(t *testing.T, dir string) *filestore.Store {
	t.Helper()
	s, err := filestore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

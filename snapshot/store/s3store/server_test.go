package s3store_test

import (
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/s3store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// modes are how a server is spoken to.
var modes = []struct {
	name string
	tls  bool
}{{"http", false}, {"tls", true}}

func TestContract(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			server := storetest.Versitygw(t, mode.tls)
			for _, prefix := range []string{"", "nodes/east"} {
				t.Run("prefix="+prefix, func(t *testing.T) {
					bucket := server.Bucket(t)
					storetest.Run(t, storetest.Kind{
						Open: func(t *testing.T) store.Store { return openURL(t, server.URL(bucket, prefix), nil) },
						Busy: true,
						Few:  mode.tls && prefix != "",
					})
				})
			}
		})
	}
}

// SeaweedFS is other code: what only versitygw does isn't relied on.
func TestContractOfSeaweedFS(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			server := storetest.Seaweedfs(t, mode.tls)
			bucket := server.Bucket(t)
			storetest.Run(t, storetest.Kind{
				Open: func(t *testing.T) store.Store { return openURL(t, server.URL(bucket, "nodes/east"), nil) },
				Few:  mode.tls, // writers that come at once wait for seconds
			})
		})
	}
}

// openURL opens a store after change has changed its configuration.
func openURL(t *testing.T, url string, change func(*s3store.Config)) *s3store.Store {
	t.Helper()
	c, err := s3store.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&c)
	}
	s, err := s3store.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

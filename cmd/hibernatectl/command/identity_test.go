package command

import (
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	tier "github.com/hibernate-runtime/hibernate/snapshot"
)

// The directory of a workload with an identity is found by the container that it has, or had last.
func TestLocalDir(t *testing.T) {
	data := t.TempDir()
	want := tier.DirFor(data, "k8s.io", "c1", "shop/db")
	l, err := tier.OpenLocal(want, tier.WithOwner("k8s.io", "c1", "shop/db"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.SetState(t.Context(), tier.Awake); err != nil {
		t.Fatal(err)
	}
	if got := localDir(data, "k8s.io", "c1"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := localDir(data, "default", "c1"); got != tier.DirFor(data, "default", "c1", "") {
		t.Errorf("of another namespace: %s", got)
	}
}

func TestIdentityTellsItsClaim(t *testing.T) {
	name := "shop/db"
	for want, s := range map[string]*shimv1.StatusResponse{
		"":                 {},
		"shop/db":          {Identity: &name},
		"shop/db, epoch 3": {Identity: &name, Epoch: 3},
		"shop/db, epoch 3; not confirmed: another node may run it, too (fencing = relaxed)": {Identity: &name, Epoch: 3, Unconfirmed: true},
	} {
		if got := identity(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

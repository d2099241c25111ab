package sandbox

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

func TestIdentityIsWithinItsScope(t *testing.T) {
	in := func(pod string) map[string]string { return map[string]string{podNamespaceAnnotation: pod} }
	for _, c := range []struct {
		what, name  string
		annotations map[string]string
		want        string
	}{
		{"none", "", in("shop"), ""},
		{"outside a pod", "db", nil, "db"},
		{"in a pod", "db", in("shop"), "shop/db"},
		{"in another pod's namespace", "db", in("bank"), "bank/db"},
	} {
		if got, err := identityOf(c.name, c.annotations); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.want)
		}
	}
	for _, pod := range []string{"a/b", "..", "../bank", "a b", "a\x00b", "/", "-a", strings.Repeat("a", 254)} {
		if got, err := identityOf("db", in(pod)); err == nil {
			t.Errorf("pod namespace %q gives %q", pod, got)
		}
	}
}

// Whoever may choose a name, and has a pod's namespace, comes to no directory but those of that namespace.
func TestNoIdentityReachesAnother(t *testing.T) {
	const victim = "db"
	theirs := snapshot.DirFor("/data", "k8s.io", "v", "bank/"+victim)
	names := []string{"db", "bank/db", "../bank/db", "/bank/db", "bank\x00db", "db\x00", "..", "bank.db", "b/db", "k/db"}
	for _, containerd := range []string{"k8s.io", "default", "k8s.io/bank", "k8s.io\x00bank"} {
		for _, pod := range []string{"shop", "bank.db", "ban", "k8s.io"} {
			for _, name := range names {
				if _, err := config.Load(config.Input{Annotations: map[string]string{config.AnnotationPrefix + "identity": name}}); err != nil {
					continue // refused at Create
				}
				identity, err := identityOf(name, map[string]string{podNamespaceAnnotation: pod})
				if err == nil && snapshot.DirFor("/data", containerd, "a", identity) == theirs {
					t.Errorf("%s/%s with the name %q reaches it", containerd, pod, name)
				}
			}
		}
	}
	if snapshot.DirFor("/data", "k8s.io", "bank/db", "") == theirs || snapshot.DirFor("/data", "k8s.io", "v", "") == theirs {
		t.Error("a container's id reaches it")
	}
}

func TestTheFirstContainerOfAnIdentityIsNamed(t *testing.T) {
	w := bare()
	w.config.RunDir, w.identity = t.TempDir(), "shop/db"
	r := handover.Record{Namespace: "n", ID: "first", Identity: w.identity, Pid: os.Getpid()}
	if err := handover.WriteRecord(w.config.RunDir, r); err != nil {
		t.Fatal(err)
	}
	busy := error(&snapshot.BusyError{Dir: "/d", Pid: os.Getpid()})
	err := w.whoHas(busy)
	if !errors.Is(err, ErrPrecondition) || !errors.Is(err, snapshot.ErrBusy) {
		t.Fatalf("%v", err)
	}
	for _, word := range []string{"n/first", "shop/db", "delete that container"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is missing in: %v", word, err)
		}
	}
	if w.identity = ""; w.whoHas(busy) != busy {
		t.Error("without an identity it is another error")
	}
}

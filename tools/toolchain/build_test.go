package main

import "testing"

func TestRequiredVersion(t *testing.T) {
	const gomod = "module m\n\ngo 1.26\n\nrequire (\n\texample.org/a v1.2.3 // indirect\n\texample.org/ab v4.5.6\n)\n\nrequire example.org/c v0.0.0-1-2\n"
	for module, want := range map[string]string{
		"example.org/a": "v1.2.3", "example.org/ab": "v4.5.6", "example.org/c": "v0.0.0-1-2",
	} {
		if got, err := requiredVersion(gomod, module); err != nil || got != want {
			t.Errorf("requiredVersion(%s) = %q, %v; want %q", module, got, err, want)
		}
	}
	if _, err := requiredVersion(gomod, "example.org/d"); err == nil {
		t.Error("a module that is not there: want an error")
	}
}

func TestChoose(t *testing.T) {
	all, err := choose(nil)
	if err != nil || len(all) == 0 {
		t.Errorf("choose(nil) = %v, %v; want all that needn't be named", all, err)
	}
	for _, tool := range all {
		if tool.asked {
			t.Errorf("choose(nil) has %s, which is built only when it is named", tool.name)
		}
	}
	if asked, err := choose([]string{"client"}); err != nil || len(asked) != 1 || asked[0].program(asked[0].packages[0]) != "client.test" {
		t.Errorf("choose(client) = %v, %v; want the tests, as client.test", asked, err)
	}
	if asked, err := choose([]string{"kube"}); err != nil || asked[0].modfile() != "tools/kube/go.mod" || asked[0].sumfile() != "tools/kube/go.sum" ||
		asked[0].programs()["kubelet"] != "kube" {
		t.Errorf("choose(kube) = %v, %v; want a module of its own, whose program kubelet is a link to", asked, err)
	}
	two, err := choose([]string{"cni", "runsc"})
	if err != nil || len(two) != 2 || two[0].name != "runsc" {
		t.Errorf("choose(cni, runsc) = %v, %v; want both in the table's order", two, err)
	}
	if _, err := choose([]string{"runsk"}); err == nil {
		t.Error("choose(runsk): want an error that names the known tools")
	}
}

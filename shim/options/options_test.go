package options

import (
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

func packed(t *testing.T, v any) *anypb.Any {
	t.Helper()
	a, err := typeurl.MarshalAnyToProto(v)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestResolve(t *testing.T) {
	ours := packed(t, &runtimeoptions.Options{ConfigPath: "/a", ConfigBody: []byte("b")})
	renamed := &anypb.Any{TypeUrl: "type.googleapis.com/cri.runtimeoptions.v1.Options", Value: ours.Value}
	runc := packed(t, &options.Options{BinaryName: "runc"})
	kept, task := Runtime{ConfigPath: "/kept"}, Runtime{ConfigPath: "/a", ConfigBody: "b"}
	for _, tc := range []struct {
		name    string
		kept    Runtime
		task    *anypb.Any
		want    Runtime
		ignored bool
	}{
		{"none", Runtime{}, nil, Runtime{}, false},
		{"the runtime's", kept, nil, kept, false},
		{"the task's win", kept, ours, task, false},
		{"an older name", kept, renamed, task, false},
		{"empty ones of the task", kept, packed(t, &runtimeoptions.Options{}), kept, false},
		{"runc's are told", kept, runc, kept, true},
		{"runc's alone", Runtime{}, runc, Runtime{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := t.TempDir()
			if err := tc.kept.Save(bundle); err != nil {
				t.Fatal(err)
			}
			got, ignored, err := Resolve(bundle, tc.task)
			if err != nil || got != tc.want || (ignored != "") != tc.ignored {
				t.Errorf("Resolve = %+v, %q, %v; want %+v, ignored %t", got, ignored, err, tc.want, tc.ignored)
			}
		})
	}
}

func TestBrokenOptions(t *testing.T) {
	if _, _, err := Resolve(t.TempDir(), &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0xff}}); err == nil {
		t.Error("no error")
	}
}

package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// secret stands wherever a workload's, or the operator's, own may be.
const secret = "hunter2"

// unpack reads a bundle.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for in := tar.NewReader(zip); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, rerr := io.ReadAll(in)
		if err = errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		if head.Mode != 0o600 {
			t.Errorf("%s has mode %o", head.Name, head.Mode)
		}
		files[strings.TrimPrefix(head.Name, "hibernate-doctor/")] = string(text)
	}
}

func TestABundleHasNoSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("config.toml", `
mode = "auto"
store = "s3://user:`+secret+`@bucket/prefix?endpoint=https://me:`+secret+`@s3.example&token=`+secret+`&region=eu"
store-key-command = ["/usr/bin/kms", "--password", "`+secret+`"]
webhook-secret = "`+secret+`"
runsc-flags = ["--x=`+secret+`"]

[[match]]
namespace = "prod"
labels = { key = "`+secret+`" }
hook-before-sleep = "/bin/notify `+secret+`"
idle-timeout = "7m"

[other]
password = "`+secret+`"
`)
	write("bundle/config.json", `{"process": {"env": ["PASSWORD=`+secret+`"]}}`)
	write("bundle/hibernate/state.json", secret)
	write("bundle/hibernate/settings.json", secret)
	write("bundle/hibernate/log/runsc.log", secret)
	write("bundle/hibernate/journal.json", `{"operation": "wake", "id": "w-1", "step": "restore", "more": "`+secret+`"}`)
	failed := &shimv1.Transition{Id: "w-1", Kind: "wake", Outcome: "blocked", Detail: `hook-after-wake ended with status 3; it said: "` + secret + `"`}
	status := &shimv1.StatusResponse{
		Namespace: "prod", Id: "web", State: "blocked", LastWake: failed, LastHibernate: failed, Waits: "it said " + secret,
		Blockers: []*shimv1.Reason{{Code: "exec", Detail: "1 exec is live"}, {Code: "x", Detail: "process.env[3] was " + secret}},
		Mended:   []*shimv1.Rung{{Name: "link", Detail: "it said " + secret}},
		Settings: []*shimv1.Setting{
			{Key: "idle-timeout", Value: "7m"}, {Key: "hook-after-wake", Value: secret}, {Key: "probe-exec", Value: secret}, {Key: "unknown", Value: secret},
		},
	}
	workload := &daemonv1.Workload{Status: status, Copies: &daemonv1.Copies{Error: "it said " + secret}}
	var out bytes.Buffer
	if err := WriteBundle(&out, Collected{
		Results: []Result{{Check: "kernel", Level: OK}}, Text: "all is well", Versions: map[string]string{"hibernatectl": "v1"}, ConfigFile: config,
		Workloads: []*daemonv1.Workload{workload}, Wakes: map[string][]*shimv1.Transition{"prod/web": {failed}},
		Records: []handover.Record{{Namespace: "prod", ID: "web", Bundle: filepath.Join(dir, "bundle")}, {Namespace: "prod", ID: "gone", Bundle: filepath.Join(dir, "none")}},
		Node:    &daemonv1.NodeResponse{Name: "node-1"}, Metrics: "hibernate_x 1", Health: "ok", At: time.Unix(1_800_000_000, 0),
	}); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, text := range files {
		if strings.Contains(text, secret) {
			t.Errorf("a secret is in %s:\n%s", name, text)
		}
	}
	for name, parts := range map[string][]string{
		"README.txt": {"Not in it"}, "doctor.txt": {"all is well"}, "doctor.json": {`"kernel"`}, "versions.json": {"v1"},
		"configuration.toml":  {"mode = 'auto'", "s3://bucket/prefix?endpoint=https%3A%2F%2Fs3.example", "region=eu", "namespace = 'prod'", "idle-timeout = '7m'", leftOut},
		"workloads.json":      {`"blocked"`, "hook-after-wake ended with status 3; it said " + leftOut, `"7m"`, "1 exec is live"},
		"wakes/prod_web.json": {`"w-1"`}, "journals.json": {`"restore"`, "prod/web", "no such file"}, "records.json": {"prod"}, "node.json": {"node-1"},
		"metrics.txt": {"hibernate_x"}, "health.txt": {"ok"},
	} {
		for _, part := range parts {
			if !strings.Contains(files[name], part) {
				t.Errorf("%q is missing in %s:\n%s", part, name, files[name])
			}
		}
	}
	if status.GetLastWake().GetDetail() != failed.GetDetail() || !strings.Contains(failed.GetDetail(), secret) || status.GetSettings()[1].GetValue() != secret {
		t.Error("what was collected was changed")
	}
	// A file that is no TOML may be cited by the error about it.
	if text := string(configurationFile(write("broken.toml", "password = "+secret))); strings.Contains(text, secret) {
		t.Error(text)
	}
}

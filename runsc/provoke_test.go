package runsc

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var capture = flag.Bool("capture", false, "write what runsc says to testdata/errors")

// provocations make runsc fail for real. Each names the kind it must be
// classified as; with -capture, its output becomes a fixture of TestClassify.
var provocations = []struct {
	name string
	want error
	do   func(*box) error
}{
	{"missing-container-state", ErrNotFound, func(b *box) error { _, err := b.State(b.ctx, "nope"); return err }},
	{"missing-container-start", ErrNotFound, func(b *box) error { return b.Start(b.ctx, "nope") }},
	{"missing-container-pause", ErrNotFound, func(b *box) error { return b.Pause(b.ctx, "nope") }},
	{"missing-container-kill", ErrNotFound, func(b *box) error { return b.Kill(b.ctx, "nope", KillOptions{Signal: 9}) }},
	{"missing-container-delete", ErrNotFound, func(b *box) error { return b.Delete(b.ctx, "nope", false) }},
	{"missing-container-exec", ErrNotFound, func(b *box) error { return b.sleeper("nope") }},
	{"missing-container-checkpoint", ErrNotFound, func(b *box) error {
		return b.Checkpoint(b.ctx, "nope", CheckpointOptions{ImagePath: b.dir + "/image"})
	}},
	{"exists", ErrExists, func(b *box) error { b.run(); return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle}) }},
	{"bundle-missing", ErrBundle, func(b *box) error { return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.dir + "/none"}) }},
	{"bundle-not-json", ErrBundle, func(b *box) error {
		b.must(os.WriteFile(b.bundle+"/config.json", []byte("{"), 0o600))
		return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle})
	}},
	{"bundle-without-rootfs", ErrBundle, func(b *box) error {
		b.must(os.RemoveAll(b.bundle + "/rootfs"))
		return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle})
	}},
	{"flag-unknown", ErrFlag, func(b *box) error {
		b.Flags = []string{"--bogus"}
		defer func() { b.Flags = nil }()
		return b.Start(b.ctx, b.id)
	}},
	{"flag-not-a-value", ErrFlag, func(b *box) error {
		b.Flags = []string{"--network=abacus"}
		defer func() { b.Flags = nil }()
		return b.Start(b.ctx, b.id)
	}},
	{"flag-bad-value", ErrFlag, func(b *box) error {
		b.Flags = []string{"--platform=abacus"}
		defer func() { b.Flags = nil }()
		return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle})
	}},
	{"netns-missing", nil, func(b *box) error {
		b.writeSpec(func(s *specs.Spec) { s.Linux.Namespaces[1].Path = "/run/none" }, "sleep")
		return b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle})
	}},
	{"start-twice", ErrNotRunning, func(b *box) error { b.run(); return b.Start(b.ctx, b.id) }},
	{"init-not-found", nil, func(b *box) error {
		b.writeSpec(func(s *specs.Spec) { s.Process.Args = []string{"/none"} })
		b.create(IO{})
		return b.Start(b.ctx, b.id)
	}},
	{"exec-created", ErrNotRunning, func(b *box) error { b.create(IO{}); return b.sleeper(b.id) }},
	{"exec-paused", ErrNotRunning, func(b *box) error { b.paused(); return b.sleeper(b.id) }},
	{"exec-not-found", nil, func(b *box) error {
		b.run()
		_, err := b.Exec(b.ctx, b.id, ExecOptions{Process: &specs.Process{Args: []string{"/none"}, Cwd: "/"}})
		return err
	}},
	{"pause-paused", ErrNotRunning, func(b *box) error { b.paused(); return b.Pause(b.ctx, b.id) }},
	{"resume-running", ErrNotRunning, func(b *box) error { b.run(); return b.Resume(b.ctx, b.id) }},
	{"kill-paused", ErrNotRunning, func(b *box) error { b.paused(); return b.Kill(b.ctx, b.id, KillOptions{Signal: 15}) }},
	{"kill-no-such-pid", ErrNotRunning, func(b *box) error {
		b.run()
		return b.Kill(b.ctx, b.id, KillOptions{Signal: 15, Pid: 99})
	}},
	{"kill-stopped", ErrNotRunning, func(b *box) error { b.dead(); return b.Kill(b.ctx, b.id, KillOptions{Signal: 15}) }},
	{"ps-stopped", ErrNotRunning, func(b *box) error { b.dead(); _, err := b.Processes(b.ctx, b.id); return err }},
	{"exec-stopped", ErrNotRunning, func(b *box) error { b.dead(); return b.sleeper(b.id) }},
	{"pause-stopped", ErrNotRunning, func(b *box) error { b.dead(); return b.Pause(b.ctx, b.id) }},
	{"checkpoint-stopped", ErrNotRunning, func(b *box) error {
		b.dead()
		return b.Checkpoint(b.ctx, b.id, CheckpointOptions{ImagePath: b.dir + "/image"})
	}},
	{"delete-running", ErrNotRunning, func(b *box) error { b.run(); return b.Delete(b.ctx, b.id, false) }},
	{"delete-filestore-gone", ErrFilestore, func(b *box) error { b.dead(); b.loseFilestore(); return b.Delete(b.ctx, b.id, false) }},
	{"checkpoint-no-space", ErrNoSpace, func(b *box) error { return b.checkpointTo("size=256k") }},
	{"checkpoint-no-inodes", ErrNoSpace, func(b *box) error { return b.checkpointTo("nr_inodes=3") }},
	{"checkpoint-exists", ErrExists, func(b *box) error {
		b.paused()
		o := CheckpointOptions{ImagePath: b.dir + "/image"}
		b.must(b.Checkpoint(b.ctx, b.id, o))
		return b.Checkpoint(b.ctx, b.id, o)
	}},
	{"restore-image-missing", ErrImage, func(b *box) error { return b.wake(b.dir + "/none") }},
	{"restore-running", ErrNotRunning, func(b *box) error {
		b.run()
		return b.Restore(b.ctx, b.id, RestoreOptions{Bundle: b.bundle, ImagePath: b.dir})
	}},
	{"restore-pages-missing", ErrImage, func(b *box) error {
		return b.damaged("pages.img", os.Remove)
	}},
	{"restore-pages-meta-missing", ErrImage, func(b *box) error {
		return b.damaged("pages_meta.img", os.Remove)
	}},
	{"restore-pages-truncated", ErrCrashed, func(b *box) error { return b.damaged("pages.img", halve) }},
	{"restore-pages-empty", ErrCrashed, func(b *box) error {
		return b.damaged("pages.img", func(p string) error { return os.Truncate(p, 0) })
	}},
	{"restore-pages-meta-truncated", ErrImage, func(b *box) error { return b.damaged("pages_meta.img", halve) }},
	{"restore-state-truncated", ErrImage, func(b *box) error { return b.damaged("checkpoint.img", halve) }},
	{"restore-state-empty", ErrCrashed, func(b *box) error {
		return b.damaged("checkpoint.img", func(p string) error { return os.Truncate(p, 0) })
	}},
	{"restore-state-garbage", ErrCrashed, func(b *box) error {
		return b.damaged("checkpoint.img", func(p string) error { return os.WriteFile(p, make([]byte, 1<<16), 0o600) })
	}},
	{"restore-state-flipped", ErrImage, func(b *box) error { return b.damaged("checkpoint.img", flipMiddle) }},
	{"restore-other-version", ErrVersion, func(b *box) error {
		return b.damaged("checkpoint.img", func(p string) error {
			return replaceInFile(p, `"runsc_version":"`, `"runsc_version":"X`)
		})
	}},
	{"restore-other-args", ErrSpec, func(b *box) error { return b.respecced(func(s *specs.Spec) { s.Process.Args[1] = "count" }) }},
	{"restore-other-mounts", ErrSpec, func(b *box) error {
		return b.respecced(func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "tmpfs", Source: "tmpfs"})
		})
	}},
	{"restore-other-annotation", ErrSpec, func(b *box) error {
		return b.respecced(func(s *specs.Spec) { s.Annotations = map[string]string{"dev.gvisor.spec.mount.x.type": "bind"} })
	}},
	{"restore-network-host", ErrSpec, func(b *box) error { return b.reflagged("--network=host") }},
	{"restore-overlay-memory", ErrSpec, func(b *box) error { return b.reflagged("--overlay2=root:memory") }},
	{"restore-overlay-none", ErrSpec, func(b *box) error { return b.reflagged("--overlay2=none") }},
	{"restore-directfs-off", ErrSpec, func(b *box) error { return b.reflagged("--directfs=false") }},
	{"restore-file-missing", ErrSpec, func(b *box) error {
		b.run()
		image := b.image()
		b.must(os.Remove(b.bundle + "/rootfs/init"))
		return b.wake(image)
	}},
	{"binary-missing", ErrMissing, func(b *box) error { return b.startBy(b.dir + "/runsc") }},
	{"binary-not-in-path", ErrMissing, func(b *box) error { return b.startBy("no-runsc-here") }},
	{"binary-not-executable", ErrMissing, func(b *box) error { return b.startBy(b.bundle + "/config.json") }},
	{"deadline", ErrDeadline, func(b *box) error {
		b.Timeouts.Control = time.Microsecond
		return b.Pause(b.ctx, b.id)
	}},
}

// TestProvoked makes each failure happen and checks its kind.
func TestProvoked(t *testing.T) {
	for _, p := range provocations {
		t.Run(p.name, func(t *testing.T) {
			b := newBox(t, "sleep")
			err := p.do(b)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v", err)
			}
			// What a flipped bit of the state means to the sandbox depends on the bit: it refuses it, or falls over it.
			fell := p.name == "restore-state-flipped" && errors.Is(err, ErrCrashed)
			if !errors.Is(err, p.want) && p.want != nil && !fell {
				t.Errorf("kind %v, want %v: %v", e.Kind, p.want, err)
			}
			if *capture && e.Log != "" {
				keep(b, p.name, e, p.want)
			}
		})
	}
}

// fixture is runsc's own output for one failure.
type fixture struct {
	Command string `json:"command"`
	Code    int    `json:"code"`
	Kind    string `json:"kind"`
	Log     string `json:"log"`    // as appended to --log
	Stderr  string `json:"stderr"` // read only when the log has no error
}

// keep writes a fixture; paths of this run, and the frames of a panic in the
// sandbox, are of no interest.
func keep(b *box, name string, e *Error, want error) {
	b.t.Helper()
	f := fixture{Command: e.Command, Code: e.Code, Kind: kindText(want)}
	log, err := os.ReadFile(e.Log)
	b.must(err)
	f.Log = strings.NewReplacer(b.dir, "/dir", b.id, "c").Replace(string(log))
	f.Log = regexp.MustCompile(`\\n[^"]*`).ReplaceAllString(f.Log, `\n(frames)`)
	if f.Log == "" {
		f.Stderr = e.Message
	}
	data, err := json.MarshalIndent(f, "", "  ")
	b.must(err)
	b.must(os.WriteFile("testdata/errors/"+name+".json", append(data, '\n'), 0o644))
}

func (b *box) startBy(path string) error {
	c := &Client{Path: path, Root: b.Root, LogDir: b.LogDir}
	return c.Start(b.ctx, b.id)
}

func (b *box) sleeper(id string) error {
	_, err := b.Exec(b.ctx, id, ExecOptions{Process: &specs.Process{Args: []string{"/init", "sleep"}, Cwd: "/"}})
	return err
}

func (b *box) paused() { b.run(); b.must(b.Pause(b.ctx, b.id)) }

// dead leaves a container whose sandbox was killed.
func (b *box) dead() {
	pid := b.run()
	b.must(unix.Kill(pid, unix.SIGKILL))
	b.status(pid)
}

// loseFilestore is what happens when an engine removes the root file system first.
func (b *box) loseFilestore() {
	b.t.Helper()
	left, err := filepath.Glob(b.bundle + "/rootfs/.gvisor.filestore.*")
	b.must(err)
	if len(left) != 1 {
		b.t.Fatalf("filestores %q; want one", left)
	}
	b.must(os.Remove(left[0]))
}

// checkpointTo writes to a tmpfs with too little of something; the container
// must still run afterwards.
func (b *box) checkpointTo(options string) error {
	b.paused()
	dir := filepath.Join(b.dir, "small")
	b.must(os.Mkdir(dir, 0o700))
	b.must(unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	defer func() { b.must(unix.Unmount(dir, unix.MNT_DETACH)) }()
	err := b.Checkpoint(b.ctx, b.id, CheckpointOptions{ImagePath: dir})
	b.must(b.Resume(b.ctx, b.id))
	_, psErr := b.Processes(b.ctx, b.id)
	b.must(psErr)
	return err
}

func (b *box) wake(image string) error {
	b.create(IO{})
	return b.Restore(b.ctx, b.id, RestoreOptions{Bundle: b.bundle, ImagePath: image})
}

// damaged restores from an image after harm was done to one file of it.
func (b *box) damaged(file string, harm func(path string) error) error {
	b.run()
	image := b.image()
	b.must(harm(filepath.Join(image, file)))
	return b.wake(image)
}

func (b *box) respecced(change func(*specs.Spec)) error {
	b.run()
	image := b.image()
	b.writeSpec(change, "sleep")
	return b.wake(image)
}

func (b *box) reflagged(flag string) error {
	b.run()
	image := b.image()
	b.Flags = append(b.Flags, flag)
	return b.wake(image)
}

func halve(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/2&^4095)
}

func flipMiddle(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i := len(data) / 2; i < len(data)/2+64; i++ {
		data[i] ^= 0xff
	}
	return os.WriteFile(path, data, 0o600)
}

// replaceInFile changes text of the image's metadata, keeping its length.
func replaceInFile(path, from, to string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := bytes.Index(data, []byte(from))
	copy(data[at:], to)
	return os.WriteFile(path, data, 0o600)
}

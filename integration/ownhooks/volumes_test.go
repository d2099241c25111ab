package ownhooks

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// wake asks for a wake as a person does.
func (a *app) wake(ask *shimv1.WakeRequest) (*shimv1.Transition, error) {
	a.Helper()
	client, done, err := a.w.Shim(a.ctx(), a.ID)
	a.must(err)
	defer done()
	ask.Reason = "request"
	r, err := client.Wake(a.ctx(), ask)
	return r.GetTransition(), err
}

func (a *app) write(name, text string) {
	a.Helper()
	a.must(os.WriteFile(a.w.Path(filepath.Join(a.outside, name)), []byte(text), 0o644))
}

// untold looks that the last wake says nothing of mounts.
func (a *app) untold() {
	a.Helper()
	a.Awake()
	if d := a.status().GetLastWake().GetDetail(); strings.Contains(d, "mount") {
		a.T.Errorf("the wake is told as %q", d)
	}
}

// What others have changed while it slept is told, and what it has written itself is not.
func TestChangedFilesAreTold(t *testing.T) {
	w := newWorld(t)
	conf := filepath.Join(w.Dir, "conf")
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	a := run(t, w, "told", nil, "--mount", "type=bind,src="+conf+",dst=/conf,options=rbind:ro")
	a.write("data", "of the host's")
	_, err := w.Exec(a.ctx(), a.ID, "/bin/sh", "-c", "mkdir /outside/dir; echo its own > /outside/dir/file; exec 3>/outside/open; echo more >&3")
	a.must(err)
	for range 2 {
		a.Sleep()
		a.GoesOn()
		a.untold()
	}
	s := a.status()
	if at := where(s.GetLastHibernate(), "volumes"); at < 0 || at != where(s.GetLastHibernate(), "checkpoint")+1 || where(s.GetLastWake(), "volumes") < 0 {
		t.Errorf("steps: %v, %v", s.GetLastHibernate().GetSteps(), s.GetLastWake().GetSteps())
	}
	a.Sleep()
	a.write("data", "of another one's")
	a.GoesOn()
	a.Awake()
	a.told(a.status().GetLastWake(), "restored", "files of the mount /outside were changed while it slept (4 entries then, 4 entries now, the latest change at ")
	a.Sleep()
	a.must(os.WriteFile(filepath.Join(conf, "new"), nil, 0o644))
	a.GoesOn()
	a.Awake()
	a.told(a.status().GetLastWake(), "restored", "the read-only mount /conf has changed (0 entries then, 1 entries now")
	a.Sleep()
	a.GoesOn()
	a.untold()
}

// With on-volume-change = refuse what others have changed hinders the wake, until a person allows it.
func TestChangedFilesAreRefused(t *testing.T) {
	w := newWorld(t)
	a := run(t, w, "refuses", map[string]string{"on-volume-change": "refuse", "on-restore-failure": "block"})
	a.Sleep()
	a.GoesOn()
	a.Sleep()
	a.write("data", "of another one's")
	if _, err := w.Wake(a.ctx(), a.ID); err == nil {
		t.Error("it wakes")
	}
	a.told(a.status().GetLastWake(), "blocked", "it is not restored over the mount /outside", "on-volume-change is refuse", "hibernatectl wake --allow-stale-volumes")
	done, err := a.wake(&shimv1.WakeRequest{StaleVolumes: true})
	a.must(err)
	a.told(done, "restored", "files of the mount /outside were changed while it slept")
	a.GoesOn()
}

// newStored makes a world with a store in a directory.
func newStored(t *testing.T) *harness.World {
	t.Helper()
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{
		"mode": `"manual"`, "store": strconv.Quote("file://" + t.TempDir()),
	}})
	t.Cleanup(func() { // what the daemon remembers of the store it keeps when the containers are gone
		ctx, cancel := context.WithTimeout(context.Background(), known.Patience)
		defer cancel()
		for _, err := range []error{w.RemoveAll(ctx), w.Daemon.Stop(ctx), os.RemoveAll(filepath.Join(w.DataDir(), ".durable"))} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// uploaded waits until the first snapshot is in the store.
func (a *app) uploaded() {
	a.Helper()
	known.Eventually(a.T, "the snapshot is in the store", func() bool {
		out, err := a.w.Output(a.ctx(), "hibernatectl", "--config", a.w.ConfigFile(), "-o", "json", "snapshots", "ls", a.ID)
		var list struct{ Lineages []struct{ Generations []any } }
		return err == nil && json.Unmarshal([]byte(out), &list) == nil && len(list.Lineages) == 1 && len(list.Lineages[0].Generations) == 1
	})
}

// A snapshot that isn't the newest is restored over files that can be written to only where a person, or the configuration, allows it.
func TestOlderMemoryOverNewerFiles(t *testing.T) {
	w := newStored(t)
	for name, annotations := range map[string]map[string]string{"asked": nil, "allowed": {"allow-stale-volumes": "true"}} {
		t.Run(name, func(t *testing.T) {
			a := run(t, w, name, annotations)
			a.write("data", "begun")
			a.Sleep()
			a.uploaded()
			a.GoesOn() // the counter is 2
			a.Awake()
			a.write("data", "gone on")
			a.Sleep()
			done, err := a.wake(&shimv1.WakeRequest{From: 1})
			if name == "asked" {
				a.told(a.status().GetLastWake(), "blocked", "it is not restored over the mount /outside: it is not the newest", "hibernatectl wake --allow-stale-volumes")
				if err == nil || a.status().GetState() != "blocked" {
					t.Fatalf("it is %s: %v", a.status().GetState(), err)
				}
				done, err = a.wake(&shimv1.WakeRequest{From: 1, StaleVolumes: true})
			}
			a.must(err)
			a.told(done, "restored-older", "restored over the mount /outside, as it was allowed, though it is not the newest")
			if got := a.Get("POST", "/counter"); got != "2" {
				t.Errorf("the counter is %s", got)
			}
		})
	}
}

// An older snapshot is restored as ever where nothing outside can have gone on.
func TestOlderMemoryAndNoFiles(t *testing.T) {
	w := newStored(t)
	a := run(t, w, "empty", nil)
	a.Sleep()
	a.uploaded()
	a.GoesOn()
	a.Sleep()
	done, err := a.wake(&shimv1.WakeRequest{From: 1})
	a.must(err)
	a.told(done, "restored-older")
	a.untold()
}

// A source that is gone, or on which nothing is mounted any more, is named, and the wake waits for a person, whatever the policy.
func TestSourcesThatAreGone(t *testing.T) {
	w := newWorld(t)
	a := prepare(t, w, "gone")
	inWorld := func(args ...string) {
		t.Helper()
		_, err := w.Output(a.ctx(), args[0], args[1:]...)
		a.must(err)
	}
	inWorld("mount", "-t", "tmpfs", "volume", a.outside)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), known.Patience)
		defer cancel()
		_, _ = w.Output(ctx, "umount", "--lazy", a.outside)
	})
	a.start(nil)
	a.write("data", "on the volume")
	a.Sleep()
	kept := a.outside + "-kept"
	inWorld("mkdir", kept)
	inWorld("mount", "--bind", a.outside, kept)
	inWorld("umount", a.outside)
	if _, err := w.Wake(a.ctx(), a.ID); err == nil {
		t.Error("it wakes without its volume")
	}
	a.told(a.status().GetLastWake(), "blocked", "it is not restored over the mount /outside: its source "+a.outside+" had 1 entries, and is empty now and on another file system",
		"mount it; then hibernatectl wake")
	inWorld("mount", "--bind", kept, a.outside)
	inWorld("umount", kept)
	_, err := w.Wake(a.ctx(), a.ID)
	a.must(err)
	a.GoesOn()
	a.untold()

	b := run(t, w, "missing", nil)
	b.Sleep()
	b.must(os.Rename(b.outside, b.outside+"-away"))
	if _, err := w.Wake(b.ctx(), b.ID); err == nil {
		t.Error("it wakes without its source")
	}
	b.told(b.status().GetLastWake(), "blocked", "the mount /outside: its source can't be looked at", b.outside, "mount or make it as it was; then hibernatectl wake")
	b.must(os.Rename(b.outside+"-away", b.outside))
	_, err = w.Wake(b.ctx(), b.ID)
	b.must(err)
	b.GoesOn()
}

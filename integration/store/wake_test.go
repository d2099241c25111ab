package store

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// stores are those that a wake is tried with.
func eachStore(t *testing.T, run func(t *testing.T, n *node, settings map[string]string)) {
	t.Run("directory", func(t *testing.T) {
		n := newNode(t)
		dir := filepath.Join(n.Dir, "kept")
		n.must(os.Mkdir(dir, 0o700))
		run(t, n, map[string]string{"store": strconv.Quote("file://" + dir)})
	})
	t.Run("s3", func(t *testing.T) {
		s := newS3(t)
		run(t, s.node, s.settings(s.bucket, "right"))
	})
	t.Run("seaweedfs", func(t *testing.T) {
		s := newOn(t, storetest.Seaweedfs(t, false))
		run(t, s.node, s.settings(s.bucket, "right"))
	})
}

// local is the directory of a workload in the local tier.
func (n *node) local(id string) string {
	n.t.Helper()
	heads, err := filepath.Glob(n.Path(filepath.Join(n.DataDir(), n.Name, "*", "head.json")))
	n.must(err)
	for _, h := range heads {
		data, err := os.ReadFile(h)
		n.must(err)
		if strings.Contains(string(data), `"id":"`+id+`"`) {
			return filepath.Dir(h)
		}
	}
	n.t.Fatalf("%s has no directory", id)
	return ""
}

// spoil changes a byte of one of the files of the node's snapshot.
func (n *node) spoil(id string, sequence int, file string, at int64) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.local(id), strconv.Itoa(sequence), "image", file), os.O_RDWR, 0)
	n.must(err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	n.must(err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	n.must(err)
}

// wokenAs looks how the last wake ended.
func (n *node) wokenAs(s *known.Server, outcome string, words ...string) {
	n.t.Helper()
	s.Awake()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	w := now.GetLastWake()
	if w.GetOutcome() != outcome {
		n.t.Fatalf("woken as %s, want %s: %s", w.GetOutcome(), outcome, w.GetDetail())
	}
	n.says(w.GetDetail(), words...)
	var steps []string
	for _, s := range w.GetSteps() {
		steps = append(steps, s.GetName()+" "+strconv.FormatFloat(s.GetMs(), 'f', 1, 64))
	}
	n.t.Logf("%s in %.1f ms: %s", outcome, w.GetTotalMs(), strings.Join(steps, ", "))
}

// TestWakesFromTheStore: a sleeper whose snapshot on the node is gone or damaged goes on as it was, again and again.
func TestWakesFromTheStore(t *testing.T) {
	eachStore(t, func(t *testing.T, n *node, settings map[string]string) {
		n.restart(settings)
		web := n.server("web", 24)
		sequence := 0
		for _, c := range []struct {
			what  string
			harm  func()
			words []string
			aside int
		}{
			{"the pages are gone", func() {
				n.must(os.Remove(filepath.Join(n.local("web"), strconv.Itoa(sequence), "image", "pages.img")))
			}, []string{"came from the store", "pages.img"}, 1},
			{"the snapshot is gone", func() { n.must(os.RemoveAll(filepath.Join(n.local("web"), strconv.Itoa(sequence)))) },
				[]string{"came from the store", "no snapshot"}, 0},
			{"the state is damaged", func() { n.spoil("web", sequence, "checkpoint.img", 5000) }, []string{"came from the store", "checkpoint.img"}, 1},
			{"the manifest is damaged", func() {
				n.must(os.WriteFile(filepath.Join(n.local("web"), strconv.Itoa(sequence), "manifest.json"), []byte("{}"), 0o600))
			}, []string{"came from the store", "manifest.json"}, 1},
			{"the head is torn", func() {
				path := filepath.Join(n.local("web"), "head.json")
				data, err := os.ReadFile(path)
				n.must(err)
				n.must(os.WriteFile(path, data[:len(data)/2], 0o600))
			}, []string{"came from the store", "head.json"}, 0},
		} {
			web.Sleep()
			sequence++
			n.stored("web", sequence)
			c.harm()
			web.GoesOn()
			n.wokenAs(web, "restored", c.words...)
			n.setAside("web", sequence, c.aside)
		}
	})
}

// TestPlainWakesFromTheStore: without the sidecar all memory is fetched before the sandbox runs.
func TestPlainWakesFromTheStore(t *testing.T) {
	storetest.Require(t)
	n := newNode(t)
	dir := filepath.Join(n.Dir, "kept")
	n.must(os.Mkdir(dir, 0o700))
	n.restart(map[string]string{"store": strconv.Quote("file://" + dir), "load": `"plain"`})
	web := n.server("web", 24)
	for sequence := 1; sequence <= 2; sequence++ {
		web.Sleep()
		n.stored("web", sequence)
		n.spoil("web", sequence, "pages.img", 9<<20)
		web.GoesOn()
		n.wokenAs(web, "restored", "came from the store", "pages.img")
		n.setAside("web", sequence, 1)
	}
}

// setAside looks whether a snapshot is in quarantine, with the reason.
func (n *node) setAside(id string, sequence, want int) {
	n.t.Helper()
	aside, err := filepath.Glob(filepath.Join(n.local(id), "quarantine", strconv.Itoa(sequence)+"-*.json"))
	if err != nil || len(aside) != want {
		n.t.Errorf("set aside of snapshot %d: %v, %v; want %d", sequence, aside, err, want)
	}
}

// TestNoCopyIsTold: what is only in the store is not told as being on the node, and a shim that dies, or a container that is started
// again, changes nothing.
func TestNoCopyIsTold(t *testing.T) {
	storetest.Require(t)
	n := newNode(t)
	dir := filepath.Join(n.Dir, "kept")
	n.must(os.Mkdir(dir, 0o700))
	n.restart(map[string]string{"store": strconv.Quote("file://" + dir)})
	web := n.server("web", 16)
	web.Sleep()
	n.stored("web", 1)
	n.must(os.RemoveAll(filepath.Join(n.local("web"), "1")))
	if got := n.copies("web"); got != "store 1" {
		t.Errorf("asleep, with nothing on the node: %q", got)
	}
	n.must(unix.Kill(web.Shim(), unix.SIGKILL))
	web.Again()
	web.GoesOn()
	n.wokenAs(web, "restored", "came from the store")
	if got := n.copies("web"); got != "store 1" {
		t.Errorf("awake: %q", got)
	}
	left, err := filepath.Glob(filepath.Join(n.local("web"), "fetched", "*"))
	n.must(err)
	known.Eventually(t, "what was fetched is gone", func() bool {
		left, err = filepath.Glob(filepath.Join(n.local("web"), "fetched", "*"))
		return err == nil && len(left) == 0
	})
	web.Sleep()
	n.stored("web", 2)
	web.GoesOn()
	n.wokenAs(web, "restored")
}

// TestALateBadChunkIsMended: a chunk that is found to be wrong while the workload runs is read from the store, and who asked for it
// gets the right answer.
func TestALateBadChunkIsMended(t *testing.T) {
	eachStore(t, func(t *testing.T, n *node, settings map[string]string) {
		n.restart(settings)
		web := n.server("web", 48)
		for sequence := 1; sequence <= 2; sequence++ {
			web.Sleep()
			n.stored("web", sequence)
			for _, mib := range []int64{3, 17, 40} {
				n.spoil("web", sequence, "pages.img", mib<<20+4097)
			}
			web.GoesOn()
			known.Eventually(t, "it is told", func() bool {
				now, err := n.Status(n.context(), "web")
				n.must(err)
				return strings.Contains(now.GetLastWake().GetDetail(), "3 chunks of the node's snapshot "+strconv.Itoa(sequence)+" were read from the store")
			})
			n.wokenAs(web, "restored")
			n.setAside("web", sequence, 1)
		}
	})
}

// TestTheStoreIsWaitedFor: within wake-timeout, and what it waits for is told meanwhile.
func TestTheStoreIsWaitedFor(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	web := s.node.server("web", 16)
	for _, c := range []struct {
		what          string
		take, give    func() error
		waits, detail string
	}{
		{"the store", func() error { s.gw.Kill(); return nil }, s.gw.Start, "waits for the store: ", "it had to wait for the store"},
		{"the daemon", s.Daemon.Kill, func() error { return s.Daemon.Start(s.context()) }, "waits for the store: ", "it had to wait for the store"},
	} {
		web.Sleep()
		s.stored("web", s.sequence(web))
		s.must(os.RemoveAll(filepath.Join(s.local("web"), strconv.Itoa(s.sequence(web)))))
		s.must(c.take())
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _ = web.Try("GET", "/memory/sha256")
		}()
		known.Eventually(t, "it is told that it waits for "+c.what, func() bool {
			now, err := s.Status(s.context(), "web")
			return err == nil && strings.HasPrefix(now.GetWaits(), c.waits)
		})
		known.Eventually(t, "its sandbox is booted meanwhile", func() bool {
			now, err := s.Status(s.context(), "web")
			return err == nil && now.GetSandboxPid() != 0
		})
		s.must(c.give())
		<-answered
		web.GoesOn()
		s.wokenAs(web, "restored", "came from the store", c.detail)
	}
}

// sequence of a server's newest snapshot.
func (n *node) sequence(s *known.Server) int {
	n.t.Helper()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	return int(now.GetSequence())
}

// TestAStoreThatStaysAway: after wake-timeout policy applies, and what wasn't restored is kept until a person goes back to it.
func TestAStoreThatStaysAway(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	cold := s.annotated("cold", 8, map[string]string{"wake-timeout": "2s"})
	block := s.annotated("block", 8, map[string]string{"wake-timeout": "2s", "on-restore-failure": "block"})
	for _, web := range []*known.Server{cold, block} {
		web.Sleep()
		s.stored(web.ID, 1)
		s.must(os.RemoveAll(filepath.Join(s.local(web.ID), "1")))
	}
	s.gw.Kill()

	before := *cold
	cold.IsNew()
	s.wokenAs(cold, "cold-started", "in the store: ", "wake-timeout")
	s.must(s.gw.Start())
	known.Eventually(t, "what was not restored is pinned", func() bool { return strings.Contains(s.ctl(0, "snapshots", "ls", "cold"), "pinned") })
	cold.Sleep()
	s.stored("cold", 2)
	s.says(s.ctl(0, "wake", "cold", "--from", "1"), "restored-older", "from snapshot 1, not 2: by request")
	before.GoesOn()
	cold.Sleep() // its state is before's now
	s.stored("cold", 3)

	s.gw.Kill()
	if _, err := block.Try("GET", "/"); err == nil {
		t.Error("a blocked workload answers")
	}
	s.inspected("block", "blocked", "in the store: ")
	now, err := s.Status(s.context(), "block")
	s.must(err)
	if pid := now.GetSandboxPid(); pid != 0 {
		t.Errorf("the sandbox that was booted for the wake, %d, is kept", pid)
	}
	s.must(s.gw.Start())
	s.ctl(0, "wake", "block")
	block.GoesOn()
	s.wokenAs(block, "restored", "came from the store")
}

// TestDaemonEndsWhileMemoryIsLoaded: the load goes on with the next daemon; without one the sandbox is ended before it reads what is
// wrong, and policy applies.
func TestDaemonEndsWhileMemoryIsLoaded(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	web := s.annotated("web", 200, map[string]string{"wake-timeout": "8s"})
	for i, back := range []bool{true, false} {
		web.Sleep()
		s.stored("web", i+1)
		s.must(os.RemoveAll(filepath.Join(s.local("web"), strconv.Itoa(i+1))))
		s.slowly(web)
		s.must(s.Daemon.Kill())
		s.relay.release()
		if back {
			s.must(s.Daemon.Start(s.context()))
			web.GoesOn()
			s.wokenAs(web, "restored", "came from the store")
			continue
		}
		known.Eventually(t, "policy applies", func() bool {
			now, err := s.Status(s.context(), "web")
			return err == nil && now.GetLastWake().GetOutcome() == "cold-started"
		})
		s.wokenAs(web, "cold-started", "load snapshot 2 from the store")
		s.must(s.Daemon.Start(s.context()))
		web.IsNew()
	}
}

// slowly wakes a server whose memory then waits for the store.
func (s *onS3) slowly(web *known.Server) {
	s.t.Helper()
	_, err := s.Wake(s.context(), web.ID)
	s.must(err)
	s.relay.holdAfter(0)
	known.Eventually(s.t, "its memory waits for the store", s.relay.held)
}

// TestWrongBytesInTheStore never reach a workload: it begins afresh, and that is told; or, where policy has it, an older snapshot
// is restored.
func TestWrongBytesInTheStore(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	web := s.annotated("web", 8, map[string]string{"restore-older": "true"})
	web.Sleep()
	s.stored("web", 1)
	older := *web
	web.GoesOn()
	web.Sleep()
	s.stored("web", 2)
	s.must(os.RemoveAll(filepath.Join(s.local("web"), "2")))
	s.spoilObjects("m/*-00000000000000000002-*")
	older.GoesOn()
	s.wokenAs(web, "restored-older", "from snapshot 1, not 2", "corrupt")
	s.says(s.ctl(0, "snapshots", "ls", "web"), "pinned")

	web.Sleep()
	s.stored("web", 3)
	s.must(os.RemoveAll(filepath.Join(s.local("web"), "3")))
	s.restart(s.settings(s.bucket, "right")) // what the daemon has read before it would find right
	s.spoilObjects("p/*")
	s.spoilObjects("m/*-00000000000000000001-*")
	web.IsNew()
	s.wokenAs(web, "cold-started", "corrupt", "snapshot 3 in the store")
}

// spoilObjects changes a byte in the middle of each object of the store's data.
func (s *onS3) spoilObjects(pattern string) {
	s.t.Helper()
	objects, err := filepath.Glob(s.gw.Path(s.bucket, "snapshots/data/*/*/"+pattern))
	if err != nil || len(objects) == 0 {
		all, _ := filepath.Glob(s.gw.Path(s.bucket, "snapshots/data/*/*/*/*"))
		s.t.Fatalf("no objects %s: %v of %v", pattern, err, all)
	}
	for _, o := range objects {
		data, err := os.ReadFile(o)
		s.must(err)
		data[len(data)/2] ^= 1
		s.must(os.WriteFile(o, data, 0o600)) // in place: versitygw's attributes stay
	}
}

// TestWakeFrom: a person goes back to an earlier snapshot, and forth again; nothing is lost by it, and numbers only go up.
func TestWakeFrom(t *testing.T) {
	eachStore(t, func(t *testing.T, n *node, settings map[string]string) {
		n.restart(settings)
		web := n.server("web", 8)
		web.Sleep()
		n.stored("web", 1)
		first := *web
		web.GoesOn()
		n.says(n.ctl(4, "wake", "web", "--from", "1"), "it is awake: put it to sleep first")
		web.Sleep()
		n.stored("web", 2)
		second := *web
		n.says(n.ctl(3, "wake", "web", "--from", "7"), "no such snapshot: 7", "the store has 2, 1", "the node has 2")
		n.inspected("web", "asleep")

		n.says(n.ctl(0, "wake", "web", "--from", "1"), "restored-older", "from snapshot 1, not 2: by request")
		head, err := os.ReadFile(filepath.Join(n.local("web"), "head.json"))
		n.must(err)
		n.says(string(head), `"sequence":2`, `"restored":1`)
		first.GoesOn()
		n.setAside("web", 2, 1)
		n.says(n.ctl(0, "snapshots", "ls", "web"), "pinned")
		first.Sleep()
		n.stored("web", 3)
		manifest, err := os.ReadFile(filepath.Join(n.local("web"), "3", "manifest.json"))
		n.must(err)
		n.says(string(manifest), `"parent":1`)

		n.ctl(0, "wake", "web", "--from", "2")
		second.GoesOn()
		second.Sleep()
		n.stored("web", 4)
		n.says(n.ctl(0, "wake", "web", "--from", "4"), "restored in")
		second.GoesOn()
	})
}

// TestAWrongKeyStops: where it isn't the store or the snapshot that fails, nobody is to decide but a person.
func TestAWrongKeyStops(t *testing.T) {
	s := newS3(t)
	right := s.settings(s.bucket, "right")
	s.restart(right)
	web := s.node.server("web", 8)
	web.Sleep()
	s.stored("web", 1)
	s.must(os.RemoveAll(filepath.Join(s.local("web"), "1")))
	wrong := s.settings(s.bucket, "right")
	wrong["store-key-file"] = strconv.Quote(s.key("other"))
	s.restart(wrong)
	s.says(s.ctl(4, "wake", "web"), "wrong key")
	s.inspected("web", "blocked", "wrong key")
	s.restart(right)
	s.ctl(0, "wake", "web")
	web.GoesOn()
	s.wokenAs(web, "restored", "came from the store")
}

// TestStartsFromTheStoreInAnotherPod: the node has lost shim, pod and snapshot; the container is started again in a pod with another address,
// goes on from the store, and sleeps and wakes there.
func TestStartsFromTheStoreInAnotherPod(t *testing.T) {
	eachStore(t, func(t *testing.T, n *node, settings map[string]string) {
		n.restart(settings)
		web := n.server("web", 16)
		for sequence := 1; sequence <= 2; sequence++ {
			web.Sleep()
			n.stored("web", sequence)
			n.must(os.RemoveAll(filepath.Join(n.local("web"), strconv.Itoa(sequence))))
			n.must(unix.Kill(web.Shim(), unix.SIGKILL))
			n.must(n.WaitTask(n.context(), "web", ""))
			n.must(n.RemovePod(n.context(), web.Pod))
			before := web.Pod.IP
			pod, err := n.NewPod(n.context(), "web")
			n.must(err)
			web.Pod = pod
			web.Again()
			web.GoesOn()
			n.wokenAs(web, "restored", "came from the store")
			if pod.IP == before {
				t.Fatalf("the address is %s again", before)
			}
		}
		web.Sleep()
		n.stored("web", 3)
		web.GoesOn()
		n.wokenAs(web, "restored")
	})
}

package store

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// onS3 is a node, a server, a bucket of it, and the way between them.
type onS3 struct {
	*node
	gw     *storetest.Server
	bucket string
	relay  *relay
}

func newS3(t *testing.T) *onS3 {
	t.Helper()
	return newOn(t, storetest.Versitygw(t, false))
}

func newOn(t *testing.T, gw *storetest.Server) *onS3 {
	t.Helper()
	s := &onS3{gw: gw}
	s.bucket = s.gw.Bucket(t)
	s.node = newNode(t)
	s.relay = newRelay(t, s.World, strings.TrimPrefix(s.gw.Endpoint, "http://"))
	return s
}

// settings are those of the node's store; change replaces some.
func (s *onS3) settings(bucket, key string) map[string]string {
	q := url.Values{"endpoint": {"http://" + s.relay.address}, "region": {"us-east-1"}}
	return map[string]string{
		"store":             strconv.Quote("s3://" + bucket + "/snapshots?" + q.Encode()),
		"store-key-file":    strconv.Quote(s.key(key)),
		"store-credentials": strconv.Quote(s.gw.Credentials),
	}
}

// TestSnapshotsComeToTheStore: each sleep's, whatever happens to the daemon and the store meanwhile; and what is there is whole.
func TestSnapshotsComeToTheStore(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	web := s.node.server("web", 16)
	web.Sleep()
	s.stored("web", 1)
	s.says(s.ctl(0, "version"), "store         s3://"+s.bucket+"/snapshots", ": fences")
	s.says(s.scrape("/healthz"), "ok\nstore: fences\n")

	web.GoesOn()
	web.Sleep()
	s.stored("web", 2)
	g := s.generations("web")
	if len(g) != 2 || g[0].sent()*10 > g[1].sent() || g[1].sent() < 16<<20 {
		t.Errorf("the second snapshot should send little: %+v", g)
	}
	s.says(s.ctl(0, "snapshots", "verify", "web"), "snapshot 2 of ", "is whole")
	s.says(s.ctl(0, "snapshots", "verify", s.Name+"/web", "1"), "snapshot 1 of ", "is whole")
	s.says(s.ctl(0, "snapshots", "gc", "--dry-run"), "0 objects (-) would be deleted")
	s.isEncrypted("TESTSERVER_MIB", "testserver")

	t.Run("the store is down", func(t *testing.T) { s.on(t).storeDown(web) })
	t.Run("the daemon is killed while it uploads", func(t *testing.T) { s.on(t).killed(web) })
	t.Run("an object is spoilt", func(t *testing.T) { s.on(t).spoilt() })
	t.Run("the container is deleted", func(t *testing.T) { s.on(t).deleted(web) })
}

func (s *onS3) on(t *testing.T) *onS3 {
	n := *s.node
	n.t = t
	return &onS3{&n, s.gw, s.bucket, s.relay}
}

// isEncrypted looks for words of the container's specification in all that the server keeps.
func (s *onS3) isEncrypted(words ...string) {
	s.t.Helper()
	files := 0
	s.must(filepath.WalkDir(s.gw.Path(s.bucket, ""), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		for _, w := range words {
			if strings.Contains(string(data), w) {
				s.t.Errorf("%s has %q in clear", path, w)
			}
		}
		return err
	}))
	if files < 5 {
		s.t.Errorf("%d objects", files)
	}
}

// storeDown: hibernation and wake go on, the lag is told, and what waits is uploaded when the store is back.
func (s *onS3) storeDown(web *known.Server) {
	s.gw.Kill()
	web.GoesOn()
	web.Sleep()
	s.inspected("web", "asleep", "sequence 2, uploaded", "; 3 has been waiting for", "tried again: ")
	s.says(s.ctl(0, "version"), "can't be used: ", "lacks the newest snapshot of 1 workloads")
	s.says(s.scrape("/healthz"), "ok\nstore: can't be used: ")
	if lag := s.metric("hibernate_upload_lag_seconds"); lag <= 0 {
		s.t.Errorf("the lag is %v", lag)
	}
	if usable, waiting := s.metric("hibernate_store_usable"), s.metric("hibernate_uploads_waiting"); usable != 0 || waiting != 1 {
		s.t.Errorf("usable %v, waiting %v", usable, waiting)
	}
	s.ctl(5, "snapshots", "ls")
	web.GoesOn() // the wake asks no store
	s.must(s.gw.Start())
	s.stored("web", 3)
	if lag := s.metric("hibernate_upload_lag_seconds"); lag != 0 {
		s.t.Errorf("the lag is %v", lag)
	}
	if got := strings.Count(s.Daemon.LogTail(1<<20), "the store can't be used"); got != 1 {
		s.t.Errorf("the outage is logged %d times", got)
	}
}

// killed: the next daemon uploads what the one before was at.
func (s *onS3) killed(web *known.Server) {
	s.relay.holdAfter(32 << 10)
	web.Sleep()
	known.Eventually(s.t, "an upload is under way", s.relay.held)
	s.says(s.copies("web"), "local 4, store 3 (late ")
	s.must(s.Daemon.Kill())
	s.relay.release()
	s.must(s.Daemon.Start(s.context()))
	s.stored("web", 4)
	s.generations("web") // under the same claim
	s.says(s.ctl(0, "snapshots", "verify", "web", "4"), "is whole")
	web.GoesOn()
}

// spoilt: verify names what is wrong, and the next snapshot doesn't rest on it.
func (s *onS3) spoilt() {
	packs, err := filepath.Glob(s.gw.Path(s.bucket, "snapshots/data/*/*/p/*"))
	if err != nil || len(packs) == 0 {
		s.t.Fatalf("%d packs: %v", len(packs), err)
	}
	for _, p := range packs {
		data, err := os.ReadFile(p)
		s.must(err)
		data[len(data)/2] ^= 1
		s.must(os.WriteFile(p, data, 0o600)) // in place: versitygw's attributes stay
	}
	s.says(s.ctl(1, "snapshots", "verify", "web"), "corrupt")
}

// deleted: the container's snapshots are kept, and told.
func (s *onS3) deleted(web *known.Server) {
	s.must(s.Remove(s.context(), "web"))
	known.Eventually(s.t, "its snapshots are told as those of a container that is gone", func() bool {
		return strings.Contains(s.ctl(0, "snapshots", "ls"), "container gone")
	})
	if out := s.ctl(0, "ls"); strings.Count(out, "\n") != 1 {
		s.t.Errorf("it is listed:\n%s", out)
	}
	again := known.New(s.t, s.World, "web", web.Pod) // another one of its name
	again.Start(harness.Container{}, 4)
	again.Sleep()
	s.stored("web", 1)
	if out := s.ctl(0, "snapshots", "ls"); strings.Count(out, s.Name+"/web ") < 2 || !strings.Contains(out, "container gone") {
		s.t.Errorf("both are kept:\n%s", out)
	}
	s.says(s.ctl(0, "snapshots", "verify", "web"), "snapshot 1 of ", "is whole")
}

// TestWrongStores: what a person has configured wrongly is told by name, and nothing is lost by it.
func TestWrongStores(t *testing.T) {
	s := newS3(t)
	right := s.settings(s.bucket, "right")
	s.restart(right)
	web := s.node.server("web", 4)
	web.Sleep()
	s.stored("web", 1)
	web.GoesOn()
	web.Sleep()
	s.stored("web", 2)
	wrongSecret := filepath.Join(s.Dir, "credentials")
	s.must(os.WriteFile(wrongSecret, []byte(fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = wrong\n", s.gw.Access)), 0o600))
	sequence := 2
	for _, tc := range []struct {
		name   string
		change func(map[string]string)
		want   []string
	}{
		{"another key", func(m map[string]string) { m["store-key-file"] = strconv.Quote(s.key("other")) }, []string{"wrong key", "configure that key, too"}},
		{"no such bucket", func(m map[string]string) { m["store"] = strings.Replace(m["store"], s.bucket, "no-such-bucket", 1) }, []string{"no-such-bucket", "NoSuchBucket"}},
		{"a wrong secret", func(m map[string]string) { m["store-credentials"] = strconv.Quote(wrongSecret) }, []string{"SignatureDoesNotMatch", "correct the credentials"}},
	} {
		wrong := s.settings(s.bucket, "right")
		tc.change(wrong)
		s.restart(wrong)
		web.GoesOn()
		web.Sleep()
		sequence++
		s.inspected("web", append(tc.want, "has been waiting", "tried again: ")...)
		s.restart(right)
		s.stored("web", sequence)
		if g := s.generations("web"); len(g) != 3 || g[0].Sequence != fmt.Sprint(sequence) {
			t.Errorf("%s: generations %+v", tc.name, g)
		}
	}
	s.says(s.ctl(0, "snapshots", "verify", "web"), "is whole")
	web.GoesOn()

	for _, tc := range []struct {
		name   string
		change func(map[string]string)
		want   string
	}{
		{"no key", func(m map[string]string) { delete(m, "store-key-file") }, "store-key-file: an S3 store needs a key"},
		{"a key that is gone", func(m map[string]string) { m["store-key-file"] = `"/nowhere/key"` }, "store-key-file: no key"},
		{"a URL that can't be", func(m map[string]string) { m["store"] = `"s3://b?endpoint=ftp://x"` }, "store: "},
	} {
		wrong := s.settings(s.bucket, "right")
		tc.change(wrong)
		if err := s.Daemon.Stop(s.context()); err != nil && tc.name == "no key" {
			t.Fatal(err)
		}
		s.configure(wrong)
		if err := s.Daemon.Start(s.context()); err == nil || !strings.Contains(s.Daemon.LogTail(2000), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	s.restart(right)
}

// TestDirectory: a store in a directory, which appears only later.
func TestDirectory(t *testing.T) {
	storetest.Require(t)
	n := newNode(t)
	dir := filepath.Join(n.Dir, "mounted")
	n.restart(map[string]string{"store": strconv.Quote("file://" + dir)})
	web := n.server("web", 4)
	web.Sleep()
	n.says(n.ctl(0, "version"), "can't be used: ", dir)
	n.inspected("web", "nothing; 1 has been waiting")
	n.must(os.Mkdir(dir, 0o700))
	n.stored("web", 1)
	n.says(n.ctl(0, "version"), "fences")
	web.GoesOn()
	web.Sleep()
	n.stored("web", 2)
	n.says(n.ctl(0, "snapshots", "verify", "web"), "is whole")
	n.says(n.Daemon.LogTail(1<<20), "are not encrypted")
}

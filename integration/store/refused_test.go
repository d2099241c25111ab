package store

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/known"
)

// TestRefusedByTheStore: a store that refuses what is asked of it decides nothing. A sleeper that is only there is not begun afresh but
// blocked, with what to do; one that is on the node wakes, sleeps and waits to be uploaded; nothing is deleted anywhere; and all goes on
// once a person has mended it.
func TestRefusedByTheStore(t *testing.T) {
	s := newS3(t)
	right := s.settings(s.bucket, "right")
	s.restart(right)
	far, near := s.node.server("far", 8), s.node.server("near", 4)
	for _, web := range []*known.Server{far, near} {
		web.Sleep()
		s.stored(web.ID, 1)
	}
	s.must(os.RemoveAll(filepath.Join(s.local("far"), "1")))
	sequence := 1
	for _, tc := range []struct {
		name string
		make func(settings map[string]string)
		want []string
	}{
		{"an unknown access key", func(m map[string]string) {
			m["store-credentials"] = strconv.Quote(s.credentials("nobody", s.gw.Secret))
		},
			[]string{"the store doesn't know the access key: correct the credentials"}},
		{"a wrong secret", func(m map[string]string) { m["store-credentials"] = strconv.Quote(s.credentials(s.gw.Access, "wrong")) },
			[]string{"SignatureDoesNotMatch", "the secret key isn't the access key's: correct the credentials"}},
		{"no such bucket", func(m map[string]string) { m["store"] = strings.Replace(m["store"], s.bucket, "no-such-bucket", 1) },
			[]string{"no-such-bucket", "NoSuchBucket", "make the bucket, or correct its name in the URL"}},
		{"a clock that is wrong", func(map[string]string) { s.relay.answer(skewed) },
			[]string{"RequestTimeTooSkewed", "set this machine's clock", "the store's clock is 1h"}},
	} {
		settings := s.settings(s.bucket, "right")
		tc.make(settings)
		s.restart(settings)
		before := s.objects()

		s.says(s.ctl(4, "wake", "far"), tc.want...)
		s.inspected("far", append(tc.want, "blocked")...)
		now, err := s.Status(s.context(), "far")
		s.must(err)
		if pid := now.GetSandboxPid(); pid != 0 {
			t.Errorf("%s: a sandbox of the blocked workload is there: %d", tc.name, pid)
		}
		near.GoesOn()
		near.Sleep()
		sequence++
		s.inspected("near", append(tc.want, "has been waiting", "tried again: ")...)
		s.says(s.ctl(0, "version"), append(tc.want, "can't be used: ")...)
		s.says(s.ctl(4, "snapshots", "gc"), tc.want...)
		if after := s.objects(); after != before {
			t.Errorf("%s: the store has changed:\n%s\nand had:\n%s", tc.name, after, before)
		}

		s.relay.answer(nil)
		s.restart(right)
		s.stored("near", sequence)
		s.says(s.ctl(0, "wake", "far"), "restored")
		far.GoesOn()
		s.wokenAs(far, "restored", "came from the store")
		far.Sleep()
		s.stored("far", sequence)
		s.must(os.RemoveAll(filepath.Join(s.local("far"), strconv.Itoa(sequence))))
	}
}

// credentials writes a file of them.
func (n *node) credentials(access, secret string) string {
	n.t.Helper()
	f, err := os.CreateTemp(n.Dir, "credentials-")
	n.must(err)
	defer f.Close()
	_, err = fmt.Fprintf(f, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret)
	n.must(err)
	return f.Name()
}

// objects tells all that the bucket has, a line each: name and digest.
func (s *onS3) objects() string {
	s.t.Helper()
	var all strings.Builder
	root := s.gw.Path(s.bucket, "snapshots")
	s.must(filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s %x\n", strings.TrimPrefix(path, root), sha256.Sum256(data))
		return err
	}))
	return all.String()
}

// skewed answers as S3 does to a request whose time is too far from the server's.
func skewed(client net.Conn) {
	const body = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>RequestTimeTooSkewed</Code>` +
		`<Message>The difference between the request time and the current time is too large.</Message></Error>`
	for in := bufio.NewReader(client); ; {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_ = request.Body.Close() // reads the rest
		date := time.Now().Add(time.Hour + time.Minute).UTC().Format(http.TimeFormat)
		if _, err := fmt.Fprintf(client, "HTTP/1.1 403 Forbidden\r\nDate: %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s", date, len(body), body); err != nil {
			return
		}
	}
}

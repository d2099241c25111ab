package storetest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Versitygw starts a versitygw that serves a directory, with TLS or without. See Require.
func Versitygw(t testing.TB, withTLS bool) *Server {
	t.Helper()
	Require(t)
	s := newServer(t, "versitygw", "versitygw", withTLS)
	s.data = dirWithAttributes(t, s.dir)
	s.arguments = func(s *Server) []string {
		args := []string{"--access", s.Access, "--secret", s.Secret, "--port", s.ports[0], "--keep-alive", "--quiet"}
		if s.CA != "" {
			args = append(args, "--cert", s.cert, "--key", s.key)
		}
		return append(args, "posix", s.data)
	}
	s.makeBucket = func(s *Server, name string) error { return os.Mkdir(filepath.Join(s.data, name), 0o755) }
	return s.serve(t, 1)
}

// Path is where a versitygw keeps an object, for tests that spoil it.
func (s *Server) Path(bucket, key string) string { return filepath.Join(s.data, bucket, key) }

// dirWithAttributes is a directory whose file system keeps extended attributes, where versitygw has the ETags: the one
// given, or one in /var/tmp where that is a tmpfs of an old kernel, or an overlay of one.
func dirWithAttributes(t testing.TB, dir string) string {
	t.Helper()
	var err error
	for _, parent := range []string{dir, "/var/tmp"} {
		var data string
		if data, err = os.MkdirTemp(parent, "versitygw-"); err != nil {
			continue
		}
		if err = unix.Setxattr(data, "user.try", []byte("x"), 0); err == nil {
			t.Cleanup(func() { os.RemoveAll(data) })
			return data
		}
		os.RemoveAll(data)
	}
	t.Fatalf("neither %s nor /var/tmp is on a file system with extended attributes, which versitygw needs: set TMPDIR to one (%v)", dir, err)
	return ""
}

package storetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// EnvRequire is the environment variable that says, when it is "1", that the tests with a real S3 server are wanted:
// without it they are skipped, with it they run or fail. The Makefile's test-store sets it.
const EnvRequire = "HIBERNATE_STORE"

const (
	startTries = 5
	readyIn    = 30 * time.Second
	endIn      = 10 * time.Second
)

// Server is a versitygw that serves a directory: the real thing, with signatures, conditions and errors as S3 has them. It
// serves until the test ends.
type Server struct {
	Endpoint          string // http(s)://127.0.0.1:port
	CA                string // file, when it speaks TLS
	Access, Secret    string
	Credentials       string // file with both, as AWS's tools have it
	data, dir         string
	cert, key         string
	command           *exec.Cmd
	output            *output
	ended             chan struct{} // closed when the process is gone
	program, hostPort string
}

// Require skips the test where no real server is wanted.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(EnvRequire) != "1" {
		t.Skip("needs a real S3 server: make test-store")
	}
}

// Versitygw starts a server, with TLS or without. See Require.
func Versitygw(t testing.TB, withTLS bool) *Server {
	t.Helper()
	Require(t)
	s := &Server{program: program(t), dir: t.TempDir(), Access: "key-" + random(), Secret: random() + random()}
	s.data = dirWithAttributes(t, s.dir)
	s.Credentials = filepath.Join(s.dir, "credentials")
	s.write(t, s.Credentials, fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s.Access, s.Secret))
	if withTLS {
		s.CA, s.cert, s.key = NewCA(t, s.dir)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() && s.output != nil {
			t.Logf("versitygw said:\n%s", s.output)
		}
	})
	for try := 1; ; try++ {
		s.hostPort = freePort(t)
		s.Endpoint = map[bool]string{false: "http://", true: "https://"}[withTLS] + s.hostPort
		err := s.Start()
		if err == nil {
			return s
		}
		if try == startTries {
			t.Fatalf("versitygw: %v\n%s", err, s.output)
		}
	}
}

// Start starts the server again on the same port and the same objects, after Kill.
func (s *Server) Start() error {
	s.output = &output{}
	args := []string{"--access", s.Access, "--secret", s.Secret, "--port", s.hostPort, "--keep-alive", "--quiet"}
	if s.CA != "" {
		args = append(args, "--cert", s.cert, "--key", s.key)
	}
	s.command = exec.Command(s.program, append(args, "posix", s.data)...)
	s.command.Stdout, s.command.Stderr = s.output, s.output
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	s.ended = make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the thread ends that started the process: this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.command.Start()
		started <- err
		if err == nil {
			s.command.Wait()
		}
		close(s.ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	return s.ready()
}

// ready waits until the server answers.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyIn)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/", nil)
		if err != nil {
			return err
		}
		if answer, err := client.Do(request); err == nil {
			answer.Body.Close()
			return nil
		}
		select {
		case <-s.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			s.Kill()
			return errors.New("it doesn't answer")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends the server as a crash does, if it runs.
func (s *Server) Kill() {
	if s.command == nil || s.command.Process == nil {
		return
	}
	s.command.Process.Kill()
	select {
	case <-s.ended:
	case <-time.After(endIn):
	}
}

// Bucket makes a bucket of a name of its own.
func (s *Server) Bucket(t testing.TB) string {
	t.Helper()
	name := "b-" + random()
	if err := os.Mkdir(filepath.Join(s.data, name), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// URL is the store's, in a bucket.
func (s *Server) URL(bucket, prefix string) string {
	q := url.Values{"endpoint": {s.Endpoint}, "region": {"us-east-1"}, "credentials": {s.Credentials}}
	if s.CA != "" {
		q.Set("ca", s.CA)
	}
	return (&url.URL{Scheme: "s3", Host: bucket, Path: "/" + prefix, RawQuery: q.Encode()}).String()
}

// Path is where the server keeps an object, for tests that spoil it.
func (s *Server) Path(bucket, key string) string { return filepath.Join(s.data, bucket, key) }

func (s *Server) write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// program finds versitygw in .tools of the repository that the test is of.
func program(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for at := dir; at != "/"; at = filepath.Dir(at) {
		path := filepath.Join(at, ".tools", "versitygw")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("no .tools/versitygw above %s: go run ./tools/toolchain versitygw", dir)
	return ""
}

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

// freePort is one of 127.0.0.1 that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// output is what the server says.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all.Len() < 1<<20 {
		o.all.Write(b)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

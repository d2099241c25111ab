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
)

// EnvRequire is the environment variable that says, when it is "1", that the tests with a real S3 server are wanted:
// without it they are skipped, with it they run or fail. The Makefile's test-store sets it.
const EnvRequire = "HIBERNATE_STORE"

const (
	startTries = 5
	readyIn    = 30 * time.Second
	endIn      = 10 * time.Second
)

// Server is a real S3 server: one with signatures, conditions and errors as S3 has them. It serves until the test ends.
type Server struct {
	Endpoint       string // http(s)://127.0.0.1:port
	CA             string // file, when it speaks TLS
	Access, Secret string
	Credentials    string // file with both, as AWS's tools have it

	name       string // of the program
	program    string // its path
	data, dir  string
	cert, key  string
	ports      []string // addresses on 127.0.0.1; the first is the endpoint's
	arguments  func(*Server) []string
	makeBucket func(s *Server, name string) error
	cleanup    func(*Server) // after it has ended
	command    *exec.Cmd
	output     *output
	ended      chan struct{} // closed when the process is gone
}

// Require skips the test where no real server is wanted.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(EnvRequire) != "1" {
		t.Skip("needs a real S3 server: make test-store")
	}
}

// newServer is a server that isn't started; tool is what builds its program.
func newServer(t testing.TB, tool, name string, withTLS bool) *Server {
	t.Helper()
	s := &Server{name: name, program: program(t, tool, name), dir: t.TempDir(), Access: "key-" + random(), Secret: random() + random()}
	s.Credentials = filepath.Join(s.dir, "credentials")
	s.write(t, s.Credentials, fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s.Access, s.Secret))
	if withTLS {
		s.CA, s.cert, s.key = NewCA(t, s.dir)
	}
	return s
}

// serve starts the server on so many ports that nobody has, and ends it with the test.
func (s *Server) serve(t testing.TB, ports int) *Server {
	t.Helper()
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() && s.output != nil {
			t.Logf("%s said:\n%s", s.name, s.output)
		}
	})
	for try := 1; ; try++ {
		s.ports = freePorts(t, ports)
		s.Endpoint = "http://" + s.ports[0]
		if s.CA != "" {
			s.Endpoint = "https://" + s.ports[0]
		}
		err := s.Start()
		if err == nil {
			return s
		}
		s.Kill()
		if try == startTries {
			t.Fatalf("%s: %v\n%s", s.name, err, s.output)
		}
	}
}

// Start starts the server again on the same port and the same objects, after Kill.
func (s *Server) Start() error {
	s.output = &output{}
	s.command = exec.Command(s.program, s.arguments(s)...)
	s.command.Dir, s.command.Env = s.dir, append(os.Environ(), "HOME="+s.dir) // a person's settings are none of it
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
	client := &http.Client{Transport: insecure()}
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

// insecure is a transport for what needs no care.
func insecure() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
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
	if s.cleanup != nil {
		s.cleanup(s)
	}
}

// Bucket makes a bucket of a name of its own.
func (s *Server) Bucket(t testing.TB) string {
	t.Helper()
	name := "b-" + random()
	if err := s.makeBucket(s, name); err != nil {
		t.Fatalf("%s: make a bucket: %v", s.name, err)
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

func (s *Server) write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// program finds a program in .tools of the repository that the test is of.
func program(t testing.TB, tool, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for at := dir; at != "/"; at = filepath.Dir(at) {
		path := filepath.Join(at, ".tools", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("no .tools/%s above %s: go run ./tools/toolchain %s", name, dir, tool)
	return ""
}

// freePorts are addresses of 127.0.0.1 that were free a moment ago.
func freePorts(t testing.TB, n int) (free []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		free = append(free, l.Addr().String())
	}
	return free
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

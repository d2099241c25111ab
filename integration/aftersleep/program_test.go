// Package aftersleep measures what sleep does to a program: docs/SLEEP.md says it, and names these tests.
//
// The program is Python that does what it is told: a test sends it statements, which it runs in one name space, and gets the value of `answer`.
package aftersleep

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const patience = 40 * time.Second

const server = `
import http.server, json, socketserver, threading, time, os, sys
space = dict(time=time, threading=threading, os=os, sys=sys, json=json)
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_POST(self):
        space["answer"] = None
        try:
            exec(self.rfile.read(int(self.headers["Content-Length"])).decode(), space)
            code, text = 200, json.dumps(space["answer"]).encode()
        except BaseException as e:
            code, text = 500, repr(e).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
Server(("0.0.0.0", 8000), Handler).serve_forever()
`

// program is one that runs.
type program struct {
	*testing.T
	w       *harness.World
	id      string
	pod     harness.Pod
	outside string // a directory of the host's that it sees as /outside
	client  *http.Client
}

func start(t *testing.T, id string, annotations map[string]string) *program {
	t.Helper()
	t.Parallel()
	p := &program{T: t, w: harness.New(t, harness.Options{Settings: map[string]string{"mode": `"manual"`}}), id: id}
	var err error
	p.pod, err = p.w.NewPod(p.ctx(), id)
	p.must(err)
	p.outside = filepath.Join(p.w.Dir, "outside")
	p.must(os.Mkdir(p.outside, 0o755))
	p.client = p.w.HTTP()
	p.client.Timeout = patience
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		for _, err := range []error{p.w.Remove(p.ctx(), id), p.w.RemovePod(p.ctx(), p.pod)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	_, err = p.w.Run(p.ctx(), harness.Container{
		ID: id, Image: "python3", NetNS: p.pod.Path, Detach: true, Annotations: annotations,
		Flags: []string{"--null-io", "--mount", "type=bind,src=" + p.outside + ",dst=/outside,options=rbind:rw"},
		Args:  []string{"/usr/bin/python3", "-c", server},
	})
	p.must(err)
	p.must(p.w.WaitPort(p.ctx(), p.address()))
	return p
}

func (p *program) address() string { return net.JoinHostPort(p.pod.IP, "8000") }

func (p *program) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.T.Cleanup(cancel)
	return ctx
}

func (p *program) must(err error) {
	p.Helper()
	if err != nil {
		p.T.Fatal(err)
	}
}

// do has the program run statements, and puts what they answer into a value. A sleeper wakes for it.
func do[T any](p *program, statements string) (answer T) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.ctx(), http.MethodPost, "http://"+p.address()+"/", bytes.NewBufferString(statements))
	p.must(err)
	response, err := p.client.Do(r)
	p.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	p.must(err)
	if response.StatusCode != http.StatusOK {
		p.Fatalf("%s: %s", statements, text)
	}
	p.must(json.Unmarshal(text, &answer))
	return answer
}

// sleep puts it to sleep.
func (p *program) sleep() {
	p.Helper()
	done, err := p.w.Sleep(p.ctx(), p.id)
	p.must(err)
	if done.GetOutcome() != "slept" {
		p.Fatalf("it is %s: %s", done.GetOutcome(), done.GetDetail())
	}
}

// wake wakes it.
func (p *program) wake() *shimv1.Transition {
	p.Helper()
	done, err := p.w.Wake(p.ctx(), p.id)
	p.must(err)
	if done.GetOutcome() != "restored" {
		p.Fatalf("it is %s: %s", done.GetOutcome(), done.GetDetail())
	}
	return done
}

// asleepFor has it sleep for so long, and wakes it.
func (p *program) asleepFor(d time.Duration) {
	p.Helper()
	p.sleep()
	time.Sleep(d) // what is measured: nothing is waited for
	p.wake()
}

// do is do for statements that answer nothing.
func (p *program) do(statements string) {
	p.Helper()
	do[any](p, statements)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

package aftersleep

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// Random numbers of the kernel's differ between two restores of one snapshot; those of a generator in memory, and what was drawn at the
// program's start, do not. The first restore is undone by its hook, which tells what both have drawn.
func TestRandomness(t *testing.T) {
	const draw = `import random, uuid, os, json, hashlib
answer = dict(kernel=os.urandom(8).hex(), uuid=str(uuid.uuid4()), device=open("/dev/urandom","rb").read(8).hex(), memory=random.random(), hash=hash("drawn at the start"))`
	const hook = `/usr/bin/python3 -c "import urllib.request as r; print(r.urlopen(r.Request(\"http://127.0.0.1:8000/\", data=open(\"/outside/draw\",\"rb\").read())).read().decode()); exit(1)"`
	p := start(t, "random", map[string]string{"hook-after-wake": hook})
	p.must(os.WriteFile(filepath.Join(p.outside, "draw"), []byte(draw), 0o644))
	p.do("import random; random.seed(); random.random()")
	p.sleep()
	drawn := func() map[string]string {
		t.Helper()
		_, err := p.w.Wake(p.ctx(), p.id)
		if err == nil {
			t.Fatal("it wakes, though its hook fails")
		}
		s, e := p.w.Status(p.ctx(), p.id)
		p.must(e)
		_, said, ok := strings.Cut(s.GetLastWake().GetDetail(), `it said: "`)
		if !ok {
			t.Fatal(s.GetLastWake().GetDetail())
		}
		values := map[string]string{}
		for part := range strings.SplitSeq(strings.NewReplacer(`\"`, "", "{", "", "}", "", " ", "").Replace(said[:strings.Index(said, `}`)]), ",") {
			name, value, _ := strings.Cut(part, ":")
			values[name] = value
		}
		return values
	}
	one, other := drawn(), drawn()
	t.Logf("%v\n%v", one, other)
	for name, same := range map[string]bool{"kernel": false, "uuid": false, "device": false, "memory": true, "hash": true} {
		if one[name] == "" || (one[name] == other[name]) != same {
			t.Errorf("%s: %s, and %s", name, one[name], other[name])
		}
	}
}

// /proc/gvisor/checkpoint tells a program that waits that it was restored, or that it goes on after a checkpoint.
func TestCheckpointFile(t *testing.T) {
	p := start(t, "told", nil)
	p.do(`
import select
heard, polled = [], []
def listen():
    while True:
        with open("/proc/gvisor/checkpoint", "rb", buffering=0) as f:
            heard.append(f.read(16).decode())
def poll():
    with open("/proc/gvisor/checkpoint", "rb", buffering=0) as f:
        p = select.poll(); p.register(f, select.POLLIN); p.poll(); polled.append(f.read(16).decode())
for f in (listen, poll): threading.Thread(target=f, daemon=True).start()
time.sleep(0.2)
`)
	hears := func(want string) {
		t.Helper()
		got := do[string](p, `
for _ in range(1000):
    if len(heard) >= `+number(float64(strings.Count(want, "\n")))+`: break
    time.sleep(0.01)
answer = "".join(heard)`)
		if got != want {
			t.Fatalf("it was told %q, want %q", got, want)
		}
	}
	p.sleep()
	p.wake()
	hears("restore\n")
	p.sleep()
	p.wake()
	hears("restore\nrestore\n")
	if _, err := p.w.Ctr(p.ctx(), "tasks", "checkpoint", "--image-path", filepath.Join(p.w.Dir, "image"), p.id); err != nil {
		t.Fatal(err)
	}
	hears("restore\nrestore\nresume\n")
	if got := do[[]string](p, "answer = polled"); len(got) != 1 || got[0] != "restore\n" {
		t.Errorf("who polls was told %q", got)
	}
}

// Child processes, pipes, signals' handlers and threads go on; a program that an exec has started doesn't.
func TestProcesses(t *testing.T) {
	p := start(t, "processes", nil)
	before := do[[]int](p, `
import subprocess, signal
child = subprocess.Popen(["/usr/bin/python3", "-c", "import sys\nfor line in sys.stdin: print(line.strip() + ' again', flush=True)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdin.write("before\n"); child.stdin.flush(); child.stdout.readline()
answer = [os.getpid(), child.pid]`)
	p.asleepFor(0)
	after := do[[]any](p, `
child.stdin.write("after\n"); child.stdin.flush()
answer = [os.getpid(), child.pid, child.poll(), child.stdout.readline()]`)
	if after[0] != float64(before[0]) || after[1] != float64(before[1]) || after[2] != nil || after[3] != "after again\n" {
		t.Errorf("before %v, after %v", before, after)
	}
}

// Locks that it has are its still; on a file of the host's they are the sandbox's alone, asleep as awake.
func TestFileLocks(t *testing.T) {
	p := start(t, "locks", nil)
	p.do(`
import fcntl
held = {}
for path in ("/tmp/lock", "/outside/lock"):
    held[path] = open(path, "w")
    fcntl.flock(held[path], fcntl.LOCK_EX)
    held[path + ".posix"] = open(path + ".posix", "w")
    fcntl.lockf(held[path + ".posix"], fcntl.LOCK_EX)
def free(path, posix):
    script = "import fcntl, sys\nf = open(sys.argv[1], 'w')\ntry: (fcntl.lockf if sys.argv[2] == 'posix' else fcntl.flock)(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: print('held')\nelse: print('free')"
    import subprocess
    return subprocess.run(["/usr/bin/python3", "-c", script, path, posix], capture_output=True, text=True).stdout.strip()
`)
	const ask = `answer = [free(path + suffix, posix) for path in ("/tmp/lock", "/outside/lock") for suffix, posix in (("", "flock"), (".posix", "posix"))]`
	if got := strings.Join(do[[]string](p, ask), " "); got != "held held held held" {
		t.Fatalf("before: %s", got)
	}
	p.asleepFor(0)
	if got := strings.Join(do[[]string](p, ask), " "); got != "held held held held" {
		t.Errorf("after: %s", got)
	}
	for _, state := range []string{"awake", "asleep"} {
		f, err := os.Open(filepath.Join(p.outside, "lock"))
		p.must(err)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s, the host finds its file locked: %v", state, err)
		}
		p.must(f.Close())
		if state == "awake" {
			p.sleep()
		}
	}
}

// Watches of files go on, with what they had to tell; what happens outside, asleep or awake, they don't see.
func TestInotify(t *testing.T) {
	p := start(t, "inotify", nil)
	p.do(`
import ctypes, struct, select
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("/tmp/watched"); os.mkdir("/outside/watched")
watch = libc.inotify_init1(os.O_NONBLOCK)
for path in (b"/tmp/watched", b"/outside/watched"):
    if libc.inotify_add_watch(watch, path, 0x100) < 0: raise OSError(ctypes.get_errno())
def events():
    names = []
    while True:
        try: data = os.read(watch, 4096)
        except BlockingIOError: return names
        while data:
            _, _, _, n = struct.unpack("iIII", data[:16])
            names.append(data[16:16+n].rstrip(b"\0").decode()); data = data[16+n:]
open("/tmp/watched/before", "w").close(); open("/outside/watched/own-before", "w").close()
`)
	p.must(os.WriteFile(filepath.Join(p.outside, "watched", "host-awake"), nil, 0o644))
	p.sleep()
	p.must(os.WriteFile(filepath.Join(p.outside, "watched", "host-asleep"), nil, 0o644))
	p.wake()
	got := do[[]string](p, `
open("/tmp/watched/after", "w").close(); open("/outside/watched/own-after", "w").close()
answer = events()`)
	if s := strings.Join(got, " "); s != "before own-before after own-after" {
		t.Errorf("the watch tells of %s", s)
	}
	if got := do[[]string](p, `answer = sorted(os.listdir("/outside/watched"))`); len(got) != 4 {
		t.Errorf("the files are %v", got)
	}
}

// remote is a service elsewhere that a program has a connection to.
func remote(t *testing.T, p *program) net.Listener {
	t.Helper()
	var l net.Listener
	err := ns.WithNetNSPath(p.w.NodeNetNS(), func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(p.w.NodeIP(), "0"))
		return err
	})
	p.must(err)
	t.Cleanup(func() { l.Close() })
	return l
}

// A service that hears nothing for too long gives the program up: its lease is another's by the wake, which that service's own goodbye brings about. Beats that
// were due in the sleep are not sent later.
func TestLeasesElsewhereRunOut(t *testing.T) {
	p := start(t, "leases", nil)
	l := remote(t, p)
	p.do(`
import socket
lease = socket.create_connection(("` + p.w.NodeIP() + `", ` + l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:] + `))
beating, lost = True, None
def beat():
    global lost
    while beating:
        try: lease.sendall(b"beat\n")
        except OSError as e: lost = repr(e); return
        time.sleep(0.1)
threading.Thread(target=beat, daemon=True).start()
`)
	conn, err := l.Accept()
	p.must(err)
	defer conn.Close()
	beats := make(chan int, 1)
	go func() { n, _ := io.Copy(io.Discard, conn); beats <- int(n) / len("beat\n") }()
	p.do("time.sleep(0.5); beating = False; time.sleep(0.2); beating = True") // it falls asleep between two
	p.sleep()
	begun := time.Now()
	time.Sleep(nap)
	s, err := p.w.Status(p.ctx(), p.id)
	p.must(err)
	if s.GetState() != "asleep" {
		t.Fatalf("it is %s", s.GetState())
	}
	p.must(conn.Close()) // the lease has run out
	awake, err := p.w.WaitState(p.ctx(), p.id, "awake")
	p.must(err)
	if awake.GetLastWake().GetReason() != "packet" {
		t.Errorf("it wakes by %s", awake.GetLastWake().GetReason())
	}
	// Not by a timer that fires at the wake: what is sent before the gate opens is lost, and docs/NETWORK.md tells what was seen then.
	got := do[string](p, `
threading.Thread(target=beat, daemon=True).start()
for _ in range(1000):
    if lost: break
    time.sleep(0.01)
beating = False
answer = str(lost)`)
	t.Logf("after %v asleep it has found %s", time.Since(begun), got)
	if !strings.Contains(got, "Error") {
		t.Errorf("it has found %q", got)
	}
	if n := <-beats; n > 12 {
		t.Errorf("%d beats were heard", n)
	}
}

// What a program says at its restore, before the gate opens, isn't lost, not even a datagram, which nobody says again: here a hook keeps the
// gate closed for a while.
func TestWordsBeforeTheGateOpens(t *testing.T) {
	p := start(t, "early", map[string]string{"hook-after-wake": "/bin/sleep 0.3"})
	var heard net.PacketConn
	p.must(ns.WithNetNSPath(p.w.NodeNetNS(), func(ns.NetNS) (err error) {
		heard, err = net.ListenPacket("udp", net.JoinHostPort(p.w.NodeIP(), "0"))
		return err
	}))
	defer heard.Close()
	_, port, err := net.SplitHostPort(heard.LocalAddr().String())
	p.must(err)
	p.do(`
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect(("` + p.w.NodeIP() + `", ` + port + `))
said = []
def say():
    peer.send(b"early"); said.append(time.time())
threading.Timer(2, say).start()`)
	p.sleep()
	time.Sleep(2 * time.Second)
	p.wake()
	p.do("while not said: time.sleep(0.01)\npeer.send(b'late')")
	for _, want := range []string{"early", "late"} {
		p.must(heard.SetReadDeadline(time.Now().Add(patience)))
		got := make([]byte, 16)
		n, _, err := heard.ReadFrom(got)
		if err != nil || string(got[:n]) != want {
			t.Fatalf("heard %q (%v), want %q", got[:n], err, want)
		}
	}
}

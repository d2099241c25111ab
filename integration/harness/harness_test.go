package harness_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

const deadline = time.Minute

// serve runs the test server, outside any container, in a pod's network namespace until the test ends.
func serve(t *testing.T, w *harness.World, pod harness.Pod) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := w.Command(ctx, "ip", "netns", "exec", pod.Name, filepath.Join(root, ".tools/testserver"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("test server said %q, %v", line, err)
	}
}

func fetch(t *testing.T, w *harness.World, url string) string {
	t.Helper()
	resp, err := w.HTTP().Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return strings.TrimSpace(string(b))
}

func TestPodWithoutCNI(t *testing.T) {
	w := harness.New(t, harness.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	pod, err := w.NewPod(ctx, "p")
	if err != nil {
		t.Fatal(err)
	}
	defer w.RemovePod(ctx, pod)
	serve(t, w, pod)
	peer := fetch(t, w, "http://"+pod.IP+":8080/remote")
	if host, _, err := net.SplitHostPort(peer); err != nil || host != w.ClientIP() {
		t.Errorf("the server saw %q, %v; want the client's address %s", peer, err, w.ClientIP())
	}
	conn, err := w.DialNode(ctx, "tcp", net.JoinHostPort(pod.IP, "7001"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line == "" {
		t.Errorf("greeting = %q, %v", line, err)
	}
}

func TestImages(t *testing.T) {
	w := harness.New(t, harness.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for _, image := range []string{"redis", "nginx", "python3", "testserver", "redis"} {
		if err := w.Import(ctx, image); err != nil {
			t.Error(err)
		}
	}
	if err := w.Import(ctx, "nothing"); err == nil || !strings.Contains(err.Error(), "make images") {
		t.Errorf("unknown image: %v; want a hint at make images", err)
	}
}

func TestContainerdComesBack(t *testing.T) {
	w := harness.New(t, harness.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	first := w.Containerd.Pid()
	if err := w.Containerd.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Containerd.Stop(ctx); !errors.Is(err, harness.ErrNotRunning) {
		t.Errorf("stopping a killed program: %v; want ErrNotRunning", err)
	}
	if err := w.Containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if again := w.Containerd.Pid(); again == 0 || again == first {
		t.Errorf("pid = %d after %d; want another one", again, first)
	}
}

func TestCensusSeesWhatIsLeft(t *testing.T) {
	w := harness.New(t, harness.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	before, err := w.Census(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.CheckLeaks(ctx, before); err != nil {
		t.Errorf("nothing was done, yet: %v", err)
	}
	const make = `
ip netns add left; ip link add left0 type bridge; ip rule add fwmark 7 lookup 7
nft add table inet left; mkdir -p /run/left; mount -t tmpfs left /run/left; touch /run/left.json
setsid sleep 60 </dev/null >/dev/null 2>&1 &`
	if _, err := w.Shell(ctx, make); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	leak := w.CheckLeaks(short, before)
	for _, want := range []string{"netns: ", "link: left0", "rule: ", "nft: table inet left", "mount: /run/left", "process: ", "file: "} {
		if leak == nil || !strings.Contains(leak.Error(), want) {
			t.Errorf("the list lacks %q:\n%v", want, leak)
		}
	}
	if leak != nil && strings.Contains(leak.Error(), "host: ") {
		t.Errorf("the machine outside was touched:\n%v", leak)
	}
	const undo = `
ip netns delete left; ip link delete left0; ip rule delete fwmark 7 lookup 7
nft delete table inet left; umount /run/left; rm /run/left.json; rmdir /run/left; kill $(pgrep --ns $$ --nslist net -x sleep)`
	if _, err := w.Shell(ctx, undo); err != nil {
		t.Error(err)
	}
}

// When the process that made a world is killed, the world goes.
func TestWorldDiesWithItsMaker(t *testing.T) {
	testroot.Require(t)
	if os.Getenv("HARNESS_MAKER") == "1" {
		w, err := harness.Start(t.Context(), harness.Options{})
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("\nworld " + w.Dir + "\n")
		select {}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestWorldDiesWithItsMaker$")
	cmd.Env = append(os.Environ(), "HARNESS_MAKER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dir := ""
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		dir = strings.TrimPrefix(lines.Text(), "world ")
		if dir == lines.Text() {
			dir = ""
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if dir == "" {
		t.Fatal("no world was made")
	}
	gone := func() bool {
		_, err := os.Stat(dir)
		cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/" + strings.Split(filepath.Base(dir), "-")[0] + "*")
		return os.IsNotExist(err) && len(cgroups) == 0
	}
	for end := time.Now().Add(20 * time.Second); !gone(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is still there", dir)
		}
	}
}

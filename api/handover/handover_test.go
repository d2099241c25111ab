package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testContext is a context that fails a hanging test rather than the run.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// openFDs counts the descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// noLeaks fails when descriptors are left over at the end of the test.
func noLeaks(t *testing.T) {
	before := openFDs(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for openFDs(t) > before {
			if time.Now().After(deadline) {
				t.Errorf("%d descriptors, %d before", openFDs(t), before)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// pair returns the two ends of a registration.
func pair(t *testing.T) (*Conn, *Peer) {
	t.Helper()
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "d.sock")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c, err := Dial(testContext(t), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p, err := s.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return c, p
}

// memFiles returns n files whose content is their number.
func memFiles(t *testing.T, n int) []*os.File {
	t.Helper()
	dir, files := t.TempDir(), make([]*os.File, n)
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, i)
		files[i] = f
	}
	t.Cleanup(func() { CloseFiles(files) })
	return files
}

func helloWith(ports int) Hello {
	h := Hello{
		Namespace: "default", ID: "web", Address: "unix:///s", Pid: 1, Version: "v",
		Target: netip.MustParseAddr("10.1.2.3"),
	}
	for i := range ports {
		h.Ports = append(h.Ports, uint16(i+1))
	}
	return h
}

func equal(a, b Hello) bool {
	same := slices.Equal(a.Ports, b.Ports)
	a.Ports, b.Ports = nil, nil
	return same && fmt.Sprint(a) == fmt.Sprint(b)
}

func TestHelloArrivesWithItsFilesInOrder(t *testing.T) {
	for _, ports := range []int{0, 1, 199, 200, 450} {
		t.Run(fmt.Sprint(ports), func(t *testing.T) {
			c, p := pair(t)
			want, files := helloWith(ports), memFiles(t, ports+1)
			sent := make(chan error, 1)
			go func() { sent <- send(c, want, files) }()
			got, received, err := p.Receive(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			defer CloseFiles(received)
			if !equal(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			for i, f := range received {
				buf := make([]byte, 8)
				n, _ := f.ReadAt(buf, 0)
				if string(buf[:n]) != fmt.Sprint(i) {
					t.Fatalf("file %d holds %q", i, buf[:n])
				}
				if flags, _ := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
					t.Fatalf("file %d is passed on to programs", i)
				}
			}
			if err := p.Acknowledge(nil); err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestListenerWorksOnTheOtherSide(t *testing.T) {
	c, p := pair(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go send(c, helloWith(1), append(memFiles(t, 1), f))
	_, files, err := p.Receive(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseFiles(files)
	p.Acknowledge(nil)
	got, err := net.FileListener(files[1])
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.Addr().String() != ln.Addr().String() {
		t.Errorf("listener of %s became %s", ln.Addr(), got.Addr())
	}
}

func TestSendAgainAndRefusal(t *testing.T) {
	c, p := pair(t)
	ctx := testContext(t)
	go func() {
		for _, refusal := range []error{nil, errors.New("no room"), nil} {
			_, files, err := p.Receive(ctx)
			if err != nil {
				return
			}
			CloseFiles(files)
			p.Acknowledge(refusal)
		}
	}()
	if err := send(c, helloWith(2), memFiles(t, 3)); err != nil {
		t.Fatal(err)
	}
	err := send(c, helloWith(1), memFiles(t, 2))
	if !errors.Is(err, ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	if err := send(c, helloWith(0), memFiles(t, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestSendsFromSeveralGoroutinesStayWhole(t *testing.T) {
	c, p := pair(t)
	ctx := testContext(t)
	const senders = 4
	files := memFiles(t, 301)
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			if err := send(c, helloWith(300), files); err != nil {
				t.Error(err)
			}
		})
	}
	for range senders {
		_, received, err := p.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		CloseFiles(received)
		p.Acknowledge(nil)
	}
	wg.Wait()
}

func TestWaitEndsWithTheDaemon(t *testing.T) {
	c, p := pair(t)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v while the daemon lives", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- send(c, helloWith(0), memFiles(t, 1)) }()
	_, files, err := p.Receive(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	CloseFiles(files)
	p.Close() // instead of acknowledging
	if err := c.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; !errors.Is(err, ErrGone) {
		t.Errorf("unacknowledged send: %v", err)
	}
	if err := send(c, helloWith(0), memFiles(t, 1)); !errors.Is(err, ErrGone) {
		t.Errorf("send to nobody: %v", err)
	}
}

func TestReceiveEndsWithTheShimAndWithItsContext(t *testing.T) {
	c, p := pair(t)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := p.Receive(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the context's error", err)
	}
	c.Close()
	if _, _, err := p.Receive(testContext(t)); !errors.Is(err, ErrGone) {
		t.Fatalf("got %v, want ErrGone", err)
	}
}

func TestPingIsAnsweredWhileReceiving(t *testing.T) {
	c, p := pair(t)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Ping(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a daemon that doesn't receive answered: %v", err)
	}
	ctx, stop := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	wg.Go(func() { p.Receive(ctx) })
	if err := c.Ping(testContext(t)); err != nil {
		t.Error(err)
	}
	stop()
	wg.Wait()
}

func TestSendChecksItsArguments(t *testing.T) {
	c, _ := pair(t)
	cases := map[string]struct {
		hello Hello
		files int
		want  error
	}{
		"too few files": {helloWith(2), 2, ErrMalformed},
		"no namespace":  {Hello{ID: "x"}, 1, ErrMalformed},
		"path as id":    {Hello{Namespace: "x", ID: "../y"}, 1, ErrMalformed},
	}
	for name, tc := range cases {
		if err := send(c, tc.hello, memFiles(t, tc.files)); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	h := helloWith(0)
	h.Address = string(make([]byte, maxMessage))
	if err := send(c, h, memFiles(t, 1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("long address: got %v", err)
	}
	many := make([]*os.File, maxFiles+1)
	if err := send(c, helloWith(maxFiles), many); !errors.Is(err, ErrTooLarge) {
		t.Errorf("many ports: got %v", err)
	}
}

// TestMalformedMessages writes packets by hand; whatever comes, no descriptor
// may be left and the next good hello must arrive.
func TestMalformedMessages(t *testing.T) {
	hello := `{"version":1,"type":"hello","sequence":7,"files":%d,"hello":{"namespace":"n","id":"i","ports":[80]}}`
	cases := map[string]struct {
		packets []string // each with two descriptors
		want    error
	}{
		"not json":          {[]string{"hello"}, ErrMalformed},
		"json of others":    {[]string{`[1]`}, ErrMalformed},
		"later version":     {[]string{`{"version":99,"type":"hello"}`}, ErrVersion},
		"no hello in it":    {[]string{`{"type":"hello","files":2}`}, ErrMalformed},
		"fewer than it has": {[]string{fmt.Sprintf(hello, 1)}, ErrMalformed},
		"too many":          {[]string{fmt.Sprintf(hello, 1<<30)}, ErrMalformed},
		"negative":          {[]string{fmt.Sprintf(hello, -1)}, ErrMalformed},
		"wrong for ports":   {[]string{fmt.Sprintf(hello, 4), `{"type":"files","sequence":7}`}, ErrMalformed},
		"broken series":     {[]string{fmt.Sprintf(hello, 4), `{"type":"ping"}`}, ErrMalformed},
		"other series":      {[]string{fmt.Sprintf(hello, 4), `{"type":"files","sequence":8}`}, ErrMalformed},
		"garbage in series": {[]string{fmt.Sprintf(hello, 4), `{{`}, ErrMalformed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, p := pair(t)
			two := memFiles(t, 2)
			fds, _ := descriptors(two)
			for _, packet := range tc.packets {
				if _, _, err := c.packets.conn.WriteMsgUnix([]byte(packet), unix.UnixRights(fds...), nil); err != nil {
					t.Fatal(err)
				}
			}
			before := openFDs(t)
			if _, _, err := p.Receive(testContext(t)); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors, %d before", after, before)
			}
			go send(c, helloWith(0), two[:1])
			_, files, err := p.Receive(testContext(t))
			if err != nil {
				t.Fatalf("the good hello after it: %v", err)
			}
			CloseFiles(files)
			p.Acknowledge(nil)
		})
	}
}

func TestUnknownTypesAndFieldsAreIgnored(t *testing.T) {
	c, p := pair(t)
	two := memFiles(t, 2)
	fds, _ := descriptors(two)
	for _, packet := range []string{
		`{"version":1,"type":"weather","sequence":1}`,
		`{"version":1,"type":"hello","sequence":3,"files":2,"new":true,"hello":{"namespace":"n","id":"i","ports":[80],"mood":1}}`,
	} {
		c.packets.conn.WriteMsgUnix([]byte(packet), unix.UnixRights(fds...), nil)
	}
	h, files, err := p.Receive(testContext(t))
	if err != nil || h.ID != "i" || len(files) != 2 {
		t.Fatalf("got %+v, %d files, %v", h, len(files), err)
	}
	CloseFiles(files)
}

func TestOversizedPacketIsRefused(t *testing.T) {
	c, p := pair(t)
	f := memFiles(t, 1)
	fds, _ := descriptors(f)
	big := make([]byte, maxMessage+1)
	if _, _, err := c.packets.conn.WriteMsgUnix(big, unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Receive(testContext(t)); !errors.Is(err, ErrMalformed) {
		t.Fatalf("got %v", err)
	}
}

func TestPermitted(t *testing.T) {
	for _, tc := range []struct {
		uid  uint32
		self int
		ok   bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 0, false}, {1001, 1000, false}} {
		err := permitted(&unix.Ucred{Uid: tc.uid}, tc.self)
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrCredentials) {
			t.Errorf("uid %d towards %d: %v", tc.uid, tc.self, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, _ := message{Type: typeHello, Hello: &Hello{Target: netip.MustParseAddr("::1")}}.encode()
	f.Add(good)
	f.Add([]byte(`{"hello":{"ports":[70000]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err == nil && m.Hello != nil {
			m.Hello.valid(m.Files)
		}
	})
}

package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/visitors"
)

const (
	visitEach  = 3 * time.Millisecond
	killWithin = 800 * time.Millisecond // of the first client: before, during or after the wake
)

// The daemon is killed at any moment while clients come to a sleeper, and another one is started: nobody is refused, and nobody
// reset but those whom it had accepted, whose connections it was passing on.
func TestDaemonKilledWhileClientsCome(t *testing.T) {
	kills := atSize(10, 100)
	s := start(t, true, nil)
	clients, accepted, phases := 0, 0, map[string]int{}
	for i := range kills {
		before := s.sleep()
		v := visitors.Begin(context.Background(), s.dialEcho, visitEach)
		if i%2 == 1 { // after the wake, also where that takes long
			_, err := s.world.WaitState(s.ctx(), id, "awake")
			s.must(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(killWithin))))
		now, err := s.world.Status(s.ctx(), id)
		s.must(errors.Join(err, syscall.Kill(s.world.Daemon.Pid(), syscall.SIGSTOP)))
		phases[now.GetState()]++
		owned, err := visitors.Accepted(int(before.GetHolderPid()), echoPort)
		s.must(errors.Join(err, s.world.Daemon.Kill(), s.world.Daemon.Start(s.ctx())))
		for _, g := range v.End() {
			clients++
			switch {
			case g.Err == nil:
			case owned[g.Port]:
				accepted++
			default:
				t.Error(g.Err)
			}
		}
	}
	t.Logf("%d kills by state %v, %d clients, of whom %d were lost with the daemon that had accepted them", kills, phases, clients, accepted)
}

func (s *server) dialEcho(ctx context.Context) (net.Conn, error) {
	return s.world.Dial(ctx, "tcp", s.address(echoPort))
}

// The daemon is stopped for a while, and goes on: who came meanwhile has waited, and is answered.
func TestDaemonHangsWhileClientsCome(t *testing.T) {
	s := start(t, true, nil)
	for range atSize(3, 20) {
		s.sleep()
		daemon := s.world.Daemon.Pid()
		v := visitors.Begin(context.Background(), s.dialEcho, visitEach)
		time.Sleep(time.Duration(rand.Int64N(int64(killWithin))))
		s.must(syscall.Kill(daemon, syscall.SIGSTOP))
		time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
		s.must(syscall.Kill(daemon, syscall.SIGCONT))
		for _, g := range v.End() {
			if g.Err != nil {
				t.Error(g.Err)
			}
		}
	}
}

// The daemon is ended in order and started again, as an upgrade does it, while clients come, and while a connection that was held
// uploads: nobody is refused or reset at all, and the upload is complete.
func TestDaemonUpgradedWhileClientsCome(t *testing.T) {
	upgrades, size := atSize(4, 40), atSize(64, 512)<<20
	s := start(t, true, nil)
	s.sleep()
	c := s.dial(mannersPort) // it wakes, and is the daemon's
	s.greet(c, "listen upload")
	s.must(c.SetDeadline(time.Now().Add(20 * patience)))
	sum, uploaded := sha256.New(), make(chan error, 1)
	paced := &pacer{part: make(chan struct{})}
	go func() {
		_, err := io.CopyN(io.MultiWriter(c, sum, paced), rand.NewChaCha8([32]byte{2}), int64(size))
		uploaded <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	for i := range upgrades {
		paced.allow(size / (upgrades + 1))
		if i%2 == 1 { // the next one's clients are held
			s.sleepInSilence()
		}
		v := visitors.Begin(context.Background(), s.dialEcho, visitEach)
		time.Sleep(time.Duration(rand.Int64N(int64(killWithin))))
		s.must(errors.Join(s.world.Daemon.Stop(s.ctx()), s.world.Daemon.Start(s.ctx())))
		for _, g := range v.End() {
			if g.Err != nil {
				t.Error("upgrade", i, g.Err)
			}
		}
	}
	paced.allow(size)
	s.must(<-uploaded)
	if g, want := s.endOf("upload"), fmt.Sprintf("%x", sum.Sum(nil)); g.End != "eof" || g.Bytes != int64(size) || g.SHA256 != want {
		t.Errorf("the server has %+v of %d bytes, %s", g, size, want)
	}
	c.Close()
	eventually(t, "no process is left that carried the connection on", func() bool { return s.drainers() == 0 })
}

// sleepInSilence puts the server to sleep when the upload has paused, and its last acknowledgement has come.
func (s *server) sleepInSilence() {
	s.t.Helper()
	s.sleep()
}

// drainers counts the processes that carry on an earlier daemon's connections.
func (s *server) drainers() (n int) {
	s.t.Helper()
	all, err := s.world.Processes()
	s.must(err)
	for _, p := range all {
		if len(p.Argv) == 2 && p.Argv[0] == "hibernated" && p.Argv[1] == "drain" {
			n++
		}
	}
	return n
}

// pacer lets so many bytes pass as are allowed.
type pacer struct {
	left int
	part chan struct{}
}

// Write waits for each mebibyte.
func (p *pacer) Write(b []byte) (int, error) {
	for p.left -= len(b); p.left < 0; p.left += mebibyte {
		<-p.part
	}
	return len(b), nil
}

// allow returns when so many bytes have passed, or there are none any more.
func (p *pacer) allow(bytes int) {
	for range bytes / mebibyte {
		select {
		case p.part <- struct{}{}:
		case <-time.After(time.Second):
			return
		}
	}
}

// A connection that the shim has accepted, when no daemon was there, stays its own when one comes, for as long as both sides will.
func TestConnectionsPassedOnByTheShimStay(t *testing.T) {
	s := start(t, true, nil)
	before := s.sleep()
	s.must(syscall.Kill(s.world.Daemon.Pid(), syscall.SIGSTOP)) // nobody accepts from here on
	c := s.dial(echoPort)
	s.must(s.world.Daemon.Kill())
	s.must(exchange(c, "without a daemon"))
	if peers, err := visitors.Accepted(int(before.GetHolderPid()), echoPort); err != nil || len(peers) != 1 {
		t.Fatalf("the shim has accepted %v: %v", peers, err)
	}
	s.must(s.world.Daemon.Start(s.ctx()))
	time.Sleep(11 * time.Second) // longer than the grace of those whose proxy ends
	s.must(exchange(c, "with one again"))
}

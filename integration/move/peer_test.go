package move

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// slowly has uploads take so long that a snapshot is not in the store yet when somebody asks for it.
var slowly = map[string]string{"upload-rate": `"4MiB"`}

// TestPeer: a workload that is stopped on one node comes to the other one straight from there, and has the store's copy made by that; by the store,
// where the node can't be asked; and not at all, where somebody else answers for it.
func TestPeer(t *testing.T) {
	storetest.Require(t)
	a, b := peers(t, slowly)
	one := a.server("one")
	one.Start(db(), mib)
	one.Count()
	one.HangUp()
	a.leave(one)
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "restored", "came from node-a")
	b.lacks(two, "store")
	two.GoesOn()
	b.stored(two, 1)
	two.HangUp()
	b.leave(two)

	b.peer.Cut(true)
	three := a.follows(two, "three")
	a.must(three.Resume(db(), mib))
	a.began(three, "restored", "came from the store")
	three.GoesOn()
	three.HangUp()
	b.peer.Cut(false)

	a.peer.Cut(true) // what is connected already is a
	a.peer.Cut(false)
	back := a.peer.Leads(impostor(t))
	a.wire.Cut(true) // so that it isn't in the store before anybody asks for it
	a.leave(three)
	four := b.follows(three, "four")
	b.refuses(four, db(), "has the key", "peer-address")
	back()
	a.wire.Cut(false)
	known.Eventually(t, "it goes on", func() bool {
		err := four.Resume(db(), mib)
		if err != nil {
			b.must(b.Remove(b.context(), four.ID))
		}
		return err == nil
	})
	b.began(four, "restored", "came from")
	four.GoesOn()
	b.must(b.Kill(b.context(), four.ID, "KILL"))
}

// TestPeerDies: the source's daemon is killed while it sends, and the target's while it receives: the workload goes on at the target, whole.
func TestPeerDies(t *testing.T) {
	storetest.Require(t)
	a, b := peers(t, slowly)
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	killed := make(chan *node, 2)
	kill := func(n *node) func() {
		return func() {
			n.must(n.Daemon.Kill())
			n.must(n.Daemon.Start(n.context()))
			killed <- n
		}
	}
	a.peer.After(mib<<20/2, kill(a))
	a.leave(one)
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "restored", "came from")
	two.GoesOn()
	two.HangUp()

	b.peer.After(mib<<20/2, kill(a))
	b.leave(two)
	three := a.follows(two, "three")
	a.must(three.Resume(db(), mib))
	a.began(three, "restored", "came from")
	three.GoesOn()
	a.must(a.Kill(a.context(), three.ID, "KILL"))
	for range 2 {
		select {
		case <-killed:
		default:
			t.Error("nobody was killed")
		}
	}
}

// lacks looks that a word isn't in what is told of the last wake.
func (n *node) lacks(s *known.Server, word string) {
	n.t.Helper()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	if text := now.GetLastWake().GetDetail(); strings.Contains(text, word) {
		n.t.Errorf("%q is in:\n%s", word, text)
	}
}

// impostor answers by TLS with a key of its own.
func impostor(t *testing.T) func() (net.Conn, error) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return func() (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			_ = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}).Handshake()
		}()
		return near, nil
	}
}

// TestMoveCommand: a node that lacks the memory is told, and the workload runs on; one that has it gets it, and it comes back to the container that sleeps
// here meanwhile.
func TestMoveCommand(t *testing.T) {
	storetest.Require(t)
	a, b := peers(t, map[string]string{"min-free-memory": `"1MiB"`})
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	before, err := os.ReadFile(b.ConfigFile())
	b.must(err)
	b.must(os.WriteFile(b.ConfigFile(), []byte(strings.ReplaceAll(string(before), `"1MiB"`, `"4096GiB"`)), 0o600))
	b.again()
	a.says(a.move("one", "node-b"), "node-b: it can't go there", "min-free-memory", "it goes on here")
	one.Awake()
	if now, err := a.Status(a.context(), one.ID); err != nil || now.GetHibernations() != 0 {
		t.Errorf("it slept for that: %d, %v", now.GetHibernations(), err)
	}
	b.must(os.WriteFile(b.ConfigFile(), before, 0o600))
	b.again()
	a.says(a.move("one", "node-c"), "node-c", "it goes on here")

	a.says(a.move("one", "node-b"), "check", "sleep", "hand-over", "from node-a", "is on node-b, asleep")
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "restored")
	b.lacks(two, "store")
	two.GoesOn()
	two.HangUp()
	b.says(b.move("two", "node-a"), "from node-b", "goes on on node-a, in container", "one")
	a.began(one, "restored", "came from node-b")
	home := known.Follow(t, two, a.World, one.ID, one.Pod)
	home.GoesOn()
	a.must(a.Kill(a.context(), one.ID, "KILL"))
}

// again starts the daemon anew.
func (n *node) again() {
	n.t.Helper()
	n.must(n.Daemon.Stop(n.context()))
	n.must(n.Daemon.Start(n.context()))
}

// move moves a server's workload by hibernatectl, and gives what it says.
func (n *node) move(id, to string) string {
	n.t.Helper()
	out, err := n.Output(n.context(), "hibernatectl", "--config", n.ConfigFile(), "--timeout", "20s", "move", id, "--to", to)
	if err != nil {
		out += err.Error()
	}
	n.t.Log(out)
	return out
}

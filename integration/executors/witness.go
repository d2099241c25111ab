package executors

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// witnessIP is the witness's on each node, so that a workload finds it wherever it is.
const witnessIP = "192.0.2.1"

// witnessAddress is where beats go.
const witnessAddress = witnessIP + ":9009"

// A Place is where a container lives.
type Place struct {
	Node    string
	Address netip.Addr
}

func (p Place) String() string { return p.Node + "/" + p.Address.String() }

// A Beat is what a copy has told.
type Beat struct {
	At      time.Time // as its packet came in
	Place   Place
	Nonce   string // of the memory
	N       uint64 // how many it has told in its life
	Counter uint64
}

// Witness hears the beats of all nodes. Its methods may be called from several goroutines.
type Witness struct {
	sockets   []*net.UDPConn
	listening sync.WaitGroup

	mu    sync.Mutex        // guards the fields below
	heard map[string][]Beat // by who lives at the place
	who   map[Place]string  // lives there
}

// NewWitness makes one that hears nothing yet.
func NewWitness() *Witness {
	return &Witness{heard: make(map[string][]Beat), who: make(map[Place]string)}
}

// Hear has the witness hear a node, from a host elsewhere in its network.
func (w *Witness) Hear(ctx context.Context, node string, world *harness.World) error {
	_, err := world.Shell(ctx, fmt.Sprintf("ip -n client addr add %[1]s/32 dev lo; ip route add %[1]s/32 via %[2]s", witnessIP, world.ClientIP()))
	if err != nil {
		return err
	}
	var c *net.UDPConn
	err = ns.WithNetNSPath(world.Path("/run/netns/client"), func(ns.NetNS) (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(witnessAddress)))
		return err
	})
	if err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	if err := stamped(c); err != nil {
		return errors.Join(fmt.Errorf("witness: %w", err), c.Close())
	}
	w.sockets = append(w.sockets, c)
	w.listening.Go(func() { w.listen(node, c) })
	return nil
}

// Close ends it.
func (w *Witness) Close() (err error) {
	for _, c := range w.sockets {
		err = errors.Join(err, c.Close())
	}
	w.listening.Wait()
	return err
}

// stamped has the kernel say when a packet came in, so that nothing hangs on when this process reads it.
func stamped(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20))
	})
	return errors.Join(err, failed)
}

func (w *Witness) listen(node string, c *net.UDPConn) {
	text, control := make([]byte, 256), make([]byte, 256)
	for {
		n, oob, _, from, err := c.ReadMsgUDPAddrPort(text, control)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		b := Beat{At: stamp(control[:oob]), Place: Place{node, from.Addr().Unmap()}}
		if b.parse(string(text[:n])) {
			w.note(b)
		}
	}
}

// stamp is the kernel's.
func stamp(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && err == nil && len(m.Data) >= 16 {
			return time.Unix(nativeInt(m.Data), nativeInt(m.Data[8:]))
		}
	}
	return time.Now()
}

func nativeInt(b []byte) (n int64) {
	for i := range 8 { // the machines that this runs on are little-endian
		n |= int64(b[i]) << (8 * i)
	}
	return n
}

func (b *Beat) parse(text string) bool {
	f := strings.Fields(text)
	if len(f) != 3 {
		return false
	}
	var errN, errC error
	b.Nonce = f[0]
	b.N, errN = strconv.ParseUint(f[1], 10, 64)
	b.Counter, errC = strconv.ParseUint(f[2], 10, 64)
	return errN == nil && errC == nil
}

func (w *Witness) note(b Beat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if who, ok := w.who[b.Place]; ok {
		w.heard[who] = append(w.heard[who], b)
	}
}

// Lives says who lives at a place from now on. It must be said before anything runs there.
func (w *Witness) Lives(p Place, who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.who[p] = who
}

// Heard is all that somebody's copies have told, in the order in which it came.
func (w *Witness) Heard(who string) []Beat {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Beat(nil), w.heard[who]...)
}

// Last is the newest beat of somebody's; ok is false when there is none.
func (w *Witness) Last(who string) (b Beat, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.heard[who]
	if len(all) == 0 {
		return b, false
	}
	return all[len(all)-1], true
}

// Forget lets go of what was heard of somebody.
func (w *Witness) Forget(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.heard, who)
}

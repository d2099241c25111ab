package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// Flow is a TCP connection of the sandbox.
type Flow = keepalive.Flow

// ErrUnseen says that segments were lost which had to be looked at: somebody may have said something.
var ErrUnseen = errors.New("more segments came than could be looked at")

// keeper stands in for a sandbox that goes to sleep, or sleeps, towards peers who ask whether their connection is still
// there. Its rules (keeperrules.go) take what may be such a question out of the traffic and show it to this process:
//
//	while the sandbox falls asleep, all that looks like one: nobody knows yet what it has to look like
//	from then on, exactly those of known connections; all else goes the way it always does
//
// What was taken and is no question after all is put back.
type keeper struct {
	log     *mdnetlink.Conn
	answers map[*family]*rawSocket // to peers
	back    map[*family]*rawSocket // to the sandbox
	done    sync.WaitGroup

	mu    sync.Mutex // guards the below
	table *keepalive.Table
	kept  [][]byte // while there is no table
	lost  bool     // more than could be kept
}

// keptSegments bounds what is kept while the sandbox falls asleep.
const keptSegments = 8192

// HoldKeepAlives has what may be a keep-alive probe for the sandbox kept from now on. It is the first step of falling
// asleep, before Disconnect: the probes of many connections come so often that no moment would be without one, and each
// would be reported as a [Miss]. Whatever is kept is answered or put back by LearnConnections, or by ReleaseKeepAlives.
func (l *Link) HoldKeepAlives(ctx context.Context) error {
	l.keeperMu.Lock()
	defer l.keeperMu.Unlock()
	if l.keeper != nil {
		return nil
	}
	l.keeperGone.Wait() // the place in the packet log is free only then
	k, err := l.openKeeper()
	if err != nil {
		return fmt.Errorf("hold keep-alives: %w", err)
	}
	if err := l.writeKeeper(ctx, l.suspects(), nil); err != nil {
		return errors.Join(fmt.Errorf("hold keep-alives: %w", err), l.removeKeeper(ctx), k.close())
	}
	k.done.Go(func() {
		if err := k.run(); err != nil { // then nobody may take what nobody looks at
			ctx, cancel := context.WithTimeout(context.Background(), netlinkMax)
			defer cancel()
			_ = l.removeKeeper(ctx)
		}
	})
	l.keeper = k
	return nil
}

// LearnConnections asks the sandbox for the state of its connections, and answers their peers' keep-alive probes from now
// on. It comes after the gate has closed, and before the sandbox stops: answers of the sandbox must not get out. Of a
// connection that is not learned, or that goes on afterwards, each packet is a [Miss], as without it. It returns how many
// are known. After ErrUnseen, as after any error, the sandbox should stay awake.
func (l *Link) LearnConnections(ctx context.Context, flows []Flow) (int, error) {
	l.keeperMu.Lock()
	defer l.keeperMu.Unlock()
	if l.keeper == nil {
		return 0, nil
	}
	table, err := l.elicit(ctx, l.carried(flows))
	if err == nil {
		err = l.writeKeeper(ctx, l.probes(), table)
	}
	if err == nil {
		err = l.keeper.decide(table)
	}
	if err != nil {
		return 0, fmt.Errorf("learn connections: %w", err)
	}
	return table.Len(), nil
}

// mostConnections bounds what is remembered of a sleeper: the rest wakes it.
const mostConnections = 8192

// carried are those flows that the link carries.
func (l *Link) carried(flows []Flow) []Flow {
	var list []Flow
	for _, f := range flows {
		f.Own = netip.AddrPortFrom(l.attachment.outside(f.Own.Addr().Unmap()), f.Own.Port())
		f.Peer = netip.AddrPortFrom(f.Peer.Addr().Unmap(), f.Peer.Port())
		if !f.Peer.Addr().IsLinkLocalUnicast() && l.attachment.has(f.Own.Addr()) && len(list) < mostConnections {
			list = append(list, f)
		}
	}
	return list
}

// ReleaseKeepAlives leaves the peers to the sandbox again. It is the last step of a wake, after Connect: what was kept is
// put back. It also removes what another process has left.
func (l *Link) ReleaseKeepAlives(ctx context.Context) error {
	l.keeperMu.Lock()
	defer l.keeperMu.Unlock()
	err := l.removeKeeper(ctx)
	if k := l.keeper; k != nil && err == nil {
		l.keeper = nil
		err = errors.Join(k.settle(), k.stop())
		k.release()
		l.keeperGone.Go(func() { _ = k.close() }) // the kernel takes some time for it, which a wake has not
	}
	if err != nil {
		return fmt.Errorf("release keep-alives: %w", err)
	}
	return nil
}

// forgetKeeper gives up the keeper of a link that is given up.
func (l *Link) forgetKeeper() error {
	l.keeperMu.Lock()
	defer l.keeperMu.Unlock()
	defer l.keeperGone.Wait()
	k := l.keeper
	if k == nil {
		return nil
	}
	l.keeper = nil
	return errors.Join(k.stop(), k.close())
}

func (l *Link) openKeeper() (k *keeper, err error) {
	k = &keeper{answers: map[*family]*rawSocket{}, back: map[*family]*rawSocket{}}
	err = enter(l.pod.ns, func() (err error) {
		if k.log, err = openLog(logGroup, logCopied); err != nil {
			return err
		}
		for _, f := range l.attachment.families() {
			if k.answers[f], err = openRaw(f, 0); err != nil {
				return err
			}
			if k.back[f], err = openRaw(f, MarkSandbox); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

// stop ends run.
func (k *keeper) stop() error {
	err := k.log.SetReadDeadline(time.Unix(1, 0))
	k.done.Wait()
	return err
}

func (k *keeper) close() error {
	var errs []error
	if k.log != nil {
		errs = append(errs, k.log.Close())
	}
	for _, sockets := range []map[*family]*rawSocket{k.answers, k.back} {
		for _, s := range sockets {
			if s != nil {
				errs = append(errs, s.close())
			}
		}
	}
	return errors.Join(errs...)
}

// run looks at each segment that the rules have taken, until stop. After an error nothing more is to be taken.
func (k *keeper) run() error {
	for {
		packets, err := receiveLog(k.log)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			k.lose()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			k.lose()
			return err
		}
		for _, p := range packets {
			k.take(p)
		}
	}
}

// lose notes that segments were not seen, or will not be.
func (k *keeper) lose() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = true
}

// take keeps a packet, or decides what becomes of it.
func (k *keeper) take(packet []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table != nil {
		k.judge(packet)
		return
	}
	if len(k.kept) == keptSegments {
		k.lost = true
		return
	}
	k.kept = append(k.kept, packet)
}

// judge answers a packet or puts it back. A network that takes neither is as one that loses them: peers ask again. The
// caller holds mu.
func (k *keeper) judge(packet []byte) {
	s, ok := keepalive.Parse(packet)
	if ok {
		switch verdict, answer := k.table.Judge(s, time.Now()); verdict {
		case keepalive.Answer:
			_ = k.answers[familyOf(answer.To.Addr())].send(answer.Packet(), answer.To.Addr())
			return
		case keepalive.Silent:
			return
		}
		keepalive.Complete(packet)
	}
	k.putBack(packet)
}

// putBack sends a packet on to the sandbox: it waits in the kernel, and is reported, while the sandbox isn't there.
func (k *keeper) putBack(packet []byte) {
	if to, ok := keepalive.Destination(packet); ok {
		_ = k.back[familyOf(to)].send(packet, to)
	}
}

// decide begins to judge by table, what was kept before first.
func (k *keeper) decide(table *keepalive.Table) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost {
		return ErrUnseen
	}
	k.table = table
	for _, p := range k.kept {
		k.judge(p)
	}
	k.kept = nil
	return nil
}

// release puts back what was kept.
func (k *keeper) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.kept {
		keepalive.Complete(p)
		k.putBack(p)
	}
	k.kept = nil
}

// settle waits until run has nothing more to read, after the rules have gone.
func (k *keeper) settle() error {
	raw, err := k.log.SyscallConn()
	if err != nil {
		return err
	}
	for until := time.Now().Add(netlinkMax); time.Now().Before(until); time.Sleep(time.Millisecond) {
		waiting := false
		err := control(raw, func(fd int) error {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			waiting = n > 0
			return err
		})
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !waiting {
			return nil
		}
	}
	return errors.New("keep-alives come without end")
}
